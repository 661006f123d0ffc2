"""How near the CPU kernel comes to this processor's limits, for forwards of a few codes.

    .venv/bin/python scripts/kernel_rates.py [model=tiny] [repeats=60]

Prints milliseconds and rates of the layers, of their products alone by matrix, of the guided head,
and of the rest (attention, norms, threads that meet). Medians; `best`: the fastest forward.

Why: speculation pays where a forward over several codes costs little more than an AR step, and that
depends on processor and kernel. Run it on a quiet machine, and on every new kind of processor. The
floor is that of docs/results.md; its rates are measured here, for a second.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch

from bench.config.arguments import divided
from bench.config.compose import compose_study
from bench.errors import EXPLAINED
from bench.measure.device import prepare
from bench.measure.roofline import MachineRates, measure_rates, work_of
from bench.run.contender import load_model
from decoders.api import ImageModel
from decoders.distribution import guided
from decoders.execution.cpu.layers import KernelLinear, reason
from decoders.kinds import Count

CODES = (1, 2, 3, 4, 5, 6, 8, 9, 12)
NAMES = ("wqkv", "wo", "w13", "w2")


@dataclass(frozen=True)
class Settings:
    """Those that no study has. repeats: how often each call is timed."""

    repeats: Count = 60


def timed(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Best and median milliseconds of a call."""
    for _ in range(3):
        call()
    seconds = []
    for _ in range(repeats):
        began = perf_counter()
        call()
        seconds.append(perf_counter() - began)
    return 1e3 * min(seconds), 1e3 * statistics.median(seconds)


def products(model: ImageModel) -> dict[str, list[KernelLinear]]:
    """The packed matrices of every layer by name, apart from those that the layers use."""
    packed: dict[str, list[KernelLinear]] = {name: [] for name in NAMES}
    for layer in model.target.layers:
        attention, forward = layer.attention, layer.feed_forward
        matrices = attention.wqkv, attention.wo, forward.w13, forward.w2
        for name, matrix in zip(NAMES, matrices, strict=True):
            packed[name].append(KernelLinear(matrix, model.dtype))
    return packed


def multiply(matrices: list[KernelLinear], inputs: torch.Tensor) -> None:
    for matrix in matrices:
        matrix(inputs)


@torch.inference_mode()
def main(words: list[str]) -> None:
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return
    settings, of_study = divided(Settings, words)
    repeats = settings.repeats
    config = compose_study(["study=quick", "backend=cpu", *of_study])
    model = load_model(config, prepare(config.backend))
    target, rows = model.target, model.sampling.guidance_rows
    if why := reason(target):
        sys.exit(f"error: the CPU kernel does not run this model: {why}")
    work = work_of(target)
    rates = MachineRates(**measure_rates(model, round(work.forward(rows)[0])))
    print(f"{model.name}, {model.dtype}, {torch.get_num_threads()} threads: the machine {rates}")
    matrices = products(model)
    size = sum(weight.numel() for layer in target.layers for weight in layer.parameters())
    before = target.prefix + target.length // 2  # slots that are filled
    cache = target.new_cache(rows, before + max(CODES))
    heading = ("codes", "rows", "floor", "best", "layers", "AR steps", "Gflop/s", "% rate")
    heading += ("products", "Gflop/s", *NAMES, "rest", "head")
    print("  ".join(f"{word:>8}" for word in heading))
    ar = 0.0
    for codes in CODES:
        n = rows * codes
        x = torch.randn(rows, codes, target.width).to(model.dtype)
        slots = torch.arange(before, before + codes).expand(rows, -1).contiguous()
        mask = torch.full((rows, codes, cache.capacity), float("-inf"))
        mask[..., : before + 1] = 0
        layers = partial(target.stack, x, slots - target.prefix, slots, mask, cache)
        best, median = timed(layers, repeats)
        by_name = {}
        for name, every in matrices.items():
            inputs = torch.randn(n, every[0].inputs).to(model.dtype)
            by_name[name] = timed(partial(multiply, every, inputs), repeats)[1]
        head = timed(lambda x=x: guided(target.logits(x), model.sampling.cfg), repeats)[1]
        ar = ar or median
        alone, gflop = sum(by_name.values()), 2e-9 * size * n
        floor, rate = rates.floor_ms(*work.forward(rows, codes)), 1e3 * gflop / median
        figures = [floor, best, median, median / ar, rate, 1e11 * rate / rates.operations_per_s]
        figures += [alone, 1e3 * gflop / alone, *by_name.values(), median - alone, head]
        print("  ".join([f"{codes:8d}", f"{n:8d}", *(f"{figure:8.2f}" for figure in figures)]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EXPLAINED as error:
        sys.exit(f"error: {error}")
