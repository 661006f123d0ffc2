"""The roofline floor of a target forward: the least seconds that this machine needs for it.

Roofline model (Williams, Waterman, Patterson 2009): seconds >= max(bytes / bandwidth, operations /
rate). Of R rows of T codes each that see S cache slots, with W numbers in the weights of layers and
head, n layers and width D:

    bytes      = weights + R S (keys and values of a slot)
    operations = 2 R T W + 4 n R T S D             products; attention

Activations are left out, and so is everything but matrix products: a floor is a lower bound.

findings.json keeps the best rates of a run: other programs only lower them, and a slow baseline
would pass as fair. Reading is measured over as many bytes as an AR step reads, because they stay in
a cache where they do so in the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.benchmark import Timer

from decoders.api import ImageModel
from decoders.cache import SLOT_MULTIPLE
from decoders.cpu_info import BF16_DOT, BF16_TILES, vectors

LEAST_BYTES, MOST_BYTES = 2**20, 2**30  # of the array that is read
SECONDS_PER_KERNEL = 0.04
CALLS_PER_REPEAT = 4  # of a kernel in a row, so that waiting for a GPU counts little
CPU_PRODUCTS = ((256, 1024, 1024), (512,) * 3, (1024,) * 3)  # rows, in, out
GPU_PRODUCTS = ((4096,) * 3, (8192,) * 3)
MOST_APART = 1.5  # the factor between the rates of one machine at two times


@dataclass(frozen=True)
class MachineRates:
    """A multiplication and an addition are two operations."""

    step_bytes_per_s: float = 0.0
    operations_per_s: float = 0.0

    def floor_ms(self, size: float, operations: float) -> float:
        """The longer of what reading and computing take, in milliseconds."""
        return 1e3 * max(size / self.step_bytes_per_s, operations / self.operations_per_s)

    def apart(self, other: MachineRates) -> float:
        """The factor, at least 1, by which the rate differs that differs most."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return max((max(x, y) / min(x, y) for x, y in pairs if x and y), default=1.0)

    def __str__(self) -> str:
        """`reads 21.3 GB/s, multiplies 1,030 Gflop/s`."""
        reads = three_digits(self.step_bytes_per_s / 1e9)
        return f"reads {reads} GB/s, multiplies {three_digits(self.operations_per_s / 1e9)} Gflop/s"


def three_digits(value: float) -> str:
    """`1,030` of 1034.6: three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


@dataclass(frozen=True)
class TargetWork:
    """What a forward of a target reads and computes, as numbers that `forward` needs. note: where
    that is uncertain or not known."""

    weight_bytes: float
    products: float  # operations of all weights on one code
    slot_bytes: float  # keys and values of a slot, of all layers
    slot_operations: float  # of a code's attention, for each slot
    slots: float  # half of the image and the prefix, the mean over an image's steps
    note: str = ""

    def forward(self, rows: int, codes: int = 1) -> tuple[float, float]:
        """The bytes and the operations of a forward over R `rows` of T `codes` with half of the
        image before them."""
        slots = self.slots + codes
        size = self.weight_bytes + rows * slots * self.slot_bytes
        return size, rows * codes * (self.products + self.slot_operations * slots)


def work_of(target: Any) -> TargetWork:
    """The work of a target: its layers and head, else all its parameters but embeddings."""
    name, note = type(target).__name__, ""
    parts = [target.layers, target.output]
    if not all(isinstance(part, nn.Module) for part in parts):
        parts = [target] if isinstance(target, nn.Module) else []
        note = (
            f"the floor counts all parameters of {name} but embeddings; for a closer one it names "
            "its `layers` and its head `output` (decoders.api.Target)"
        )
    modules = [m for m in nn.ModuleList(parts).modules() if not isinstance(m, nn.Embedding)]
    weights: set[Tensor] = {w for m in modules for w in m.parameters(recurse=False)}
    if not weights:
        note = f"no floor known: the target {name} has no parameters (torch.nn.Module)"
    cache = target.new_cache(1, SLOT_MULTIPLE).data  # [layers, 2, R, H, S, d]
    return TargetWork(
        weight_bytes=sum(weight.nbytes for weight in weights),
        products=2 * sum(weight.numel() for weight in weights),
        slot_bytes=cache.nbytes / SLOT_MULTIPLE,
        slot_operations=4 * cache.shape[0] * target.width,
        slots=target.prefix + target.length / 2,
        note=note,
    )


def measure_rates(model: ImageModel, step_bytes: int) -> dict[str, float]:
    """The rates of this moment, with the threads that torch is set to; a second on a CPU. Products
    of float32 count on a processor too. Those of bfloat16 are measured where it has instructions
    for them: elsewhere PyTorch's take ten times as long, and would take seconds."""
    device, dtype, threads = model.device, model.dtype, torch.get_num_threads()

    def rate(kernel: Callable[[], Any], amount: int) -> float:
        """How much a kernel does per second in its fastest repeat; amount: of one call."""
        calls = "\n".join(["call()"] * CALLS_PER_REPEAT)
        timer = Timer(calls, globals={"call": kernel}, num_threads=threads)
        seconds = timer.blocked_autorange(min_run_time=SECONDS_PER_KERNEL).times
        return CALLS_PER_REPEAT * amount / min(seconds)

    with torch.inference_mode():
        size = min(max(step_bytes, LEAST_BYTES), MOST_BYTES) // 8 * 8
        array = torch.ones(size // 4, device=device)
        kernels = array.view(torch.int64).sum, array.sum, array.amax
        reading = max(rate(kernel, size) for kernel in kernels)
        on_cpu, computing = device.type == "cpu", list[float]()
        shapes = CPU_PRODUCTS if on_cpu else GPU_PRODUCTS
        short = dtype != torch.bfloat16 or {BF16_DOT, BF16_TILES} & {*vectors()}
        kinds = ({torch.float32, dtype} if short else {torch.float32}) if on_cpu else {dtype}
        for kind, (rows, inputs, outputs) in itertools.product(kinds, shapes):
            x = torch.randn(rows, inputs, device=device).to(kind)
            weight = torch.randn(outputs, inputs, device=device).to(kind)
            computing.append(rate(partial(linear, x, weight), 2 * rows * inputs * outputs))
    return {"step_bytes_per_s": reading, "operations_per_s": max(computing)}
