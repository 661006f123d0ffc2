"""A machine's measured rates: bytes that it reads and operations that it multiplies per second.
machine.json keeps the best ones of a run.

Why the best: other programs only lower a machine's rates, and a floor from a lowered rate is too
high, so that a slow baseline passes as fair. Reading is measured over as many bytes as an AR step
reads, because they stay in a cache where they do so in the step. A report reads machine.json
without torch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoders.api import ImageModel

MACHINE = "machine.json"
LEAST_BYTES, MOST_BYTES = 2**20, 2**30  # of the array that is read
BUDGET = 0.04  # seconds that a kernel is repeated for
CALLS = 4  # of a kernel in a row, so that waiting for a GPU counts little
CPU_PRODUCTS = ((128, 512, 512), (256, 1024, 1024), (512,) * 3, (1024,) * 3)  # rows, in, out
GPU_PRODUCTS = ((4096,) * 3, (8192,) * 3)


@dataclass(frozen=True)
class MachineRates:
    """name: the processor or GPU. A multiplication and an addition are two operations."""

    name: str
    step_bytes_per_s: float = 0.0
    operations_per_s: float = 0.0

    def __str__(self) -> str:
        """`reads 21.3 GB/s, multiplies 1,030 Gflop/s`."""
        rates = (self.step_bytes_per_s / 1e9, self.operations_per_s / 1e9)
        reads, multiplies = map(three_digits, rates)
        return f"reads {reads} GB/s, multiplies {multiplies} Gflop/s"


def three_digits(value: float) -> str:
    """`1,030` of 1034.6: three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def read_rates(path: Path) -> MachineRates | None:
    """The rates of machine.json; None where there is no such file, or one of other fields."""
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        return MachineRates(**{field.name: values[field.name] for field in fields(MachineRates)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def measure_rates(model: ImageModel, step_bytes: int) -> dict[str, float]:
    """The rates of this moment, with the threads that torch is set to; a second on a CPU.

    Products of float32 count on a processor too: one without instructions for the model's dtype is
    faster when it multiplies its numbers as float32.
    """
    import torch
    import torch.nn.functional as F

    device, dtype = model.device, model.dtype
    with torch.inference_mode():
        size = min(max(step_bytes, LEAST_BYTES), MOST_BYTES) // 8 * 8
        array = torch.ones(size // 4, device=device)
        reading = max(
            rate(reduce, size) for reduce in (array.view(torch.int64).sum, array.sum, array.amax)
        )
        on_cpu, computing = device.type == "cpu", list[float]()
        shapes = CPU_PRODUCTS if on_cpu else GPU_PRODUCTS
        kinds = {torch.float32, dtype} if on_cpu else {dtype}
        for kind, (rows, inputs, outputs) in itertools.product(kinds, shapes):
            x = torch.randn(rows, inputs, device=device).to(kind)
            weight = torch.randn(outputs, inputs, device=device).to(kind)
            computing.append(rate(partial(F.linear, x, weight), 2 * rows * inputs * outputs))
    return {"step_bytes_per_s": reading, "operations_per_s": max(computing)}


def rate(kernel: Callable[[], Any], amount: int) -> float:
    """How much a kernel does per second in its fastest repeat; amount: how much one call does."""
    import torch
    from torch.utils.benchmark import Timer

    threads = torch.get_num_threads()
    calls = Timer("\n".join(["call()"] * CALLS), globals={"call": kernel}, num_threads=threads)
    return CALLS * amount / min(calls.blocked_autorange(min_run_time=BUDGET).times)
