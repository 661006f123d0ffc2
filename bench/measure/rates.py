"""A machine's measured rates: bytes that it reads per second, operations that it multiplies per
second. machine.json keeps them with the records of a run.

Why of several moments: what else runs on a machine only ever lowers its rates, and a floor from a
lowered rate is too high, so that a slow baseline passes as fair. The best rate of any kernel,
repeat and moment counts. Reading is measured over as many bytes as an AR step reads, which stay in
a cache where they do so in the step. A report reads machine.json without torch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.data.files import write_text

if TYPE_CHECKING:
    from decoders.api import ImageModel

MACHINE = "machine.json"
SHOWN = "rates.json"  # in the user's cache: the best bandwidth of each kind of host
BUSY = 0.8  # of the best bandwidth that this kind of host has shown
LEAST_BYTES, MOST_BYTES = 2**20, 2**30  # of the array that is read
BUDGET = 0.04  # seconds that a kernel is repeated for
CALLS = 4  # of a kernel in a row, so that waiting for a GPU counts little
CPU_PRODUCTS = ((128, 512, 512), (256, 1024, 1024), (512,) * 3, (1024,) * 3)  # rows, in, out
GPU_PRODUCTS = ((4096,) * 3, (8192,) * 3)


@dataclass(frozen=True)
class MachineRates:
    """Rates of one device at one dtype and thread count, unscaled.

    name: of the processor or GPU; step_bytes: what an AR step reads; operations_per_s: a
    multiplication and an addition are two; shown: the best step_bytes_per_s that this kind of host
    has shown to any run of this user.
    """

    device: str
    name: str
    dtype: str
    threads: int
    step_bytes: int
    step_bytes_per_s: float = 0.0
    operations_per_s: float = 0.0
    shown: float = 0.0

    @property
    def kind(self) -> str:
        """Of host and work: rates of another kind do not compare."""
        work = f"{self.threads} threads, {self.dtype}, {self.step_bytes} bytes"
        return f"{self.name}, {self.device}, {work}"

    def __str__(self) -> str:
        """`reads 21.3 GB/s, multiplies 982 Gflop/s`, and whether the machine was busy: whether it
        reads more slowly than its kind has shown."""
        text = f"reads {self.step_bytes_per_s / 1e9:.3g} GB/s, multiplies "
        text += f"{self.operations_per_s / 1e9:.3g} Gflop/s"
        if self.step_bytes_per_s < BUSY * self.shown:
            text += f" (busy: this kind of host has shown {self.shown / 1e9:.3g} GB/s)"
        return text


def read_rates(path: Path) -> MachineRates | None:
    """The rates of machine.json; None where there is no such file, or one of other fields."""
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        names = [field.name for field in fields(MachineRates) if field.name in values]
        return MachineRates(**{name: values[name] for name in names})
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class Watch:
    """Measures the machine of a run. folder: where machine.json lies; step_bytes: what an AR step
    of the model reads; name: of the processor or GPU."""

    folder: Path
    model: ImageModel
    step_bytes: int
    name: str

    def known(self) -> MachineRates | None:
        """The best of all moments so far, of earlier sessions too; None where machine.json is not
        there, or is of another machine, dtype, thread count or model."""
        rates = read_rates(self.folder / MACHINE)
        return rates if rates is not None and rates.kind == self._unmeasured().kind else None

    def look(self) -> MachineRates:
        """Measures now; returns the best of all moments so far."""
        best, moment = self.known() or self._unmeasured(), measure_rates(self)
        rates = {name: max(getattr(best, name), rate) for name, rate in moment.items()}
        best = replace(best, **rates)
        best = replace(best, shown=best_shown(best))
        write_text(self.folder / MACHINE, json.dumps(asdict(best), indent=1) + "\n")
        return best

    def _unmeasured(self) -> MachineRates:
        import torch

        model, threads = self.model, torch.get_num_threads()
        dtype = str(model.dtype).removeprefix("torch.")
        return MachineRates(str(model.device), self.name, dtype, threads, self.step_bytes)


def best_shown(rates: MachineRates) -> float:
    """The best bandwidth that this kind of host has shown so far; kept for later runs."""
    from decoders.places import folder

    path = folder() / SHOWN
    try:
        known = {k: float(v) for k, v in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        known = {}
    best = max(known.get(rates.kind, 0.0), rates.step_bytes_per_s)
    if best > known.get(rates.kind, 0.0):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {rates.kind: best}, indent=1) + "\n")
    return best


def measure_rates(watch: Watch) -> dict[str, float]:
    """The rates of this moment, with the threads that torch is set to; a second on a CPU.

    Products of float32 count on a processor too: one without instructions for the model's dtype is
    faster when it multiplies its numbers as float32.
    """
    import torch
    import torch.nn.functional as F

    device, dtype = watch.model.device, watch.model.dtype
    with torch.inference_mode():
        size = min(max(watch.step_bytes, LEAST_BYTES), MOST_BYTES) // 8 * 8
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
    """What a kernel gets done per second in its fastest repeat; amount: in one call."""
    import torch
    from torch.utils.benchmark import Timer

    threads = torch.get_num_threads()
    calls = Timer("\n".join(["call()"] * CALLS), globals={"call": kernel}, num_threads=threads)
    return CALLS * amount / min(calls.blocked_autorange(min_run_time=BUDGET).times)
