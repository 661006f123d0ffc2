"""What this machine can do: bytes read a second and matrix operations a second, measured.

Why: a step can be no faster than its weights can be read and its products computed
(`bench.measure.floors`; Williams et al., "Roofline", 2009), so a time says little without the
machine's own rates. A floor must be a lower bound, and whatever else runs here raises it. So rates
are the best of several kernels and repeats, at several moments of a run. A neighbour that stays all
run long is seen by none of them. Reading is measured twice: over an array far larger than the last
cache, and over one as large as what an AR step reads, which stays in the cache where that does.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.data.files import write_text
from bench.measure.clock import Clock, now
from bench.measure.floors import Unknown, step_bytes, target_net
from bench.measure.rates import MACHINE, MachineRates, Moment, read_rates, save_rates
from decoders.api import ImageModel
from decoders.places import folder as cache

MIB = 2**20
LARGE, SMALL = 256 * MIB, MIB  # bytes: the large array at least, the step's array at least
CACHES = 4  # the large array is at least so many last-level caches
MOST = 1024 * MIB
BUDGET = 0.12  # seconds a kernel is repeated for
MOMENT = 0.04  # the same at each moment of a run: half a second in all on a CPU
SHOWN = "rates.json"  # the best bandwidth that each kind of host has shown, in the cache
LEAST, REPEATS = 4, 400  # repeats of a kernel, many of those that are over at once
SLOW = 5  # times as slow as another kernel: not repeated
GRAPHED = 8  # calls in one replayed graph on a GPU, so that launches cost nothing
CPU_PRODUCTS = ((128, 512, 512), (256, 1024, 1024), (512,) * 3, (1024,) * 3)  # T, in, out
GPU_PRODUCTS = ((4096,) * 3, (8192,) * 3)


@torch.inference_mode()
def measure_rates(
    device: torch.device, dtype: torch.dtype, step_bytes: int, name: str, budget: float = BUDGET
) -> MachineRates:
    """Measures the device with the threads that torch is set to; some three seconds on a CPU.

    step_bytes: what an AR step of the model reads. name: of the processor or GPU. budget: seconds
    that a kernel is repeated for.
    """
    began = time.perf_counter()
    large = _large(device)
    array = torch.ones(large // 4, device=device)
    big_rate, big_spread = _reading(array, device, budget)
    own = min(max(step_bytes, SMALL), large) // 8 * 8
    rate, spread = big_rate, big_spread
    if own != large:
        rate, spread = _reading(array[: own // 4], device, budget)
    del array
    operations, product_spread = _products(device, dtype, budget)
    least_steady = max(big_spread, spread, product_spread)
    return MachineRates(
        device=str(device),
        name=name,
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        large_bytes=large,
        large_bytes_per_s=big_rate,
        step_bytes=step_bytes,
        step_bytes_per_s=rate,
        operations_per_s=operations,
        spread=least_steady,
        seconds=time.perf_counter() - began,
        moments=(Moment(now(), big_rate, rate, operations, least_steady),),
    )


def _large(device: torch.device) -> int:
    """Bytes of the large array: several last-level caches, at most a quarter of free memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(MOST, max(free // 4, SMALL)) // 8 * 8
    import psutil

    free = psutil.virtual_memory().available
    wanted = min(max(LARGE, CACHES * _last_cache()), MOST)
    return min(wanted, max(free // 4, SMALL)) // 8 * 8


def _last_cache() -> int:
    """Bytes of the largest cache that Linux reports; 0 where it reports none."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 2**10, "M": MIB}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM") or 0) * unit)
    return max(sizes)


def _reading(array: Tensor, device: torch.device, budget: float) -> tuple[float, float]:
    """(bytes a second, spread) of reading a float32 array: the fastest of three reductions."""
    words = array.view(torch.int64)
    kernels: tuple[Callable[[], Any], ...] = (words.sum, array.sum, array.amax)
    return _best(kernels, [array.nbytes] * len(kernels), device, budget)


def _products(device: torch.device, dtype: torch.dtype, budget: float) -> tuple[float, float]:
    """(operations a second, spread) of the fastest of several large matrix products.

    On a processor those of float32 too: one without instructions for `dtype` is faster when it
    multiplies its numbers as float32, so its floor knows of that.
    """
    shapes = CPU_PRODUCTS if device.type == "cpu" else GPU_PRODUCTS
    kinds = dict.fromkeys((torch.float32, dtype) if device.type == "cpu" else (dtype,))
    kernels: list[Callable[[], Any]] = []
    for kind, (rows, inputs, outputs) in itertools.product(kinds, shapes):
        x = torch.randn(rows, inputs, device=device).to(kind)
        weight = torch.randn(outputs, inputs, device=device).to(kind)
        kernels.append(lambda x=x, weight=weight: F.linear(x, weight))  # type: ignore[misc]
    amounts = [2 * m * k * n for m, k, n in shapes] * len(kinds)
    return _best(tuple(kernels), amounts, device, budget)


def _best(
    kernels: tuple[Callable[[], Any], ...],
    amounts: list[int],
    device: torch.device,
    budget: float,
) -> tuple[float, float]:
    """The highest rate of any kernel and repeat, and the spread of that kernel's repeats."""
    found = [(0.0, 0.0)]
    for kernel, amount in zip(kernels, amounts, strict=True):
        if device.type == "cuda":
            seconds = gpu_seconds(kernel, budget)
        else:
            fast, _ = max(found)
            hopeless = SLOW * amount / fast if fast else float("inf")
            seconds = _host_seconds(kernel, device, budget, hopeless)
        best = min(seconds)
        found.append((amount / best, statistics.median(seconds) / best - 1))
    return max(found)


def _host_seconds(
    kernel: Callable[[], Any], device: torch.device, budget: float, hopeless: float
) -> list[float]:
    """Seconds of each repeat by the wall clock, the device's queue emptied on both sides; of the
    first call alone where that takes `hopeless` seconds or more."""
    wait = Clock(device).synchronise

    def timed() -> float:
        wait()
        began = time.perf_counter()
        kernel()
        wait()
        return time.perf_counter() - began

    first = timed()
    return [first] if first >= hopeless else _repeated(timed, budget)


def _repeated(timed: Callable[[], float], budget: float) -> list[float]:
    """Seconds of each repeat, of as many as the budget of seconds allows."""
    seconds: list[float] = []
    while len(seconds) < LEAST or (len(seconds) < REPEATS and sum(seconds) < budget):
        seconds.append(timed())
    return seconds


def gpu_seconds(kernel: Callable[[], Any], budget: float = BUDGET) -> list[float]:
    """Seconds of one call by CUDA events; several calls are replayed as one graph, so that no
    launch is in them."""
    kernel()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPHED):
            kernel()
    graph.replay()
    spent = _repeated(lambda: cuda_milliseconds(graph.replay) / 1e3, budget)
    return [seconds / GRAPHED for seconds in spent]


def cuda_milliseconds(run: Callable[[], Any]) -> float:
    """By CUDA events, which leave out what Python takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


@dataclass(frozen=True)
class Watch:
    """Of the machine under one model. folder: where machine.json lies; step: bytes that an AR
    step reads; name: of the processor or GPU."""

    folder: Path
    model: ImageModel
    step: int
    name: str

    def known(self) -> MachineRates | None:
        """The best of all moments so far, of earlier sessions too; None where machine.json is not
        there, or is of another machine, dtype, thread count or model."""
        found = read_rates(self.folder / MACHINE)
        dtype = str(self.model.dtype).removeprefix("torch.")
        threads, device = torch.get_num_threads(), str(self.model.device)
        fits = found is not None and found.fits(device, self.name, dtype, threads, self.step)
        return found if fits else None

    def look(self) -> MachineRates:
        """Measures now; returns the best of all moments so far."""
        model, before = self.model, self.known()
        rates = measure_rates(model.device, model.dtype, self.step, self.name, MOMENT)
        best = rates if before is None else before.joined(rates)
        best = replace(best, shown=best_shown(best))
        save_rates(best, self.folder / MACHINE)
        return best


def watch_of(folder: Path, model: ImageModel, name: str) -> Watch | None:
    """None for a model whose floor is not known: nothing asks for the machine's rates then."""
    net = target_net(model)
    return None if isinstance(net, Unknown) else Watch(folder, model, step_bytes(net, model), name)


def best_shown(rates: MachineRates) -> float:
    """The best bandwidth, bytes per second, that this kind of host (its name, threads and number
    type) has shown to any run of this user; kept for later runs."""
    path = cache() / SHOWN
    kind = f"{rates.name}, {rates.device}, {rates.threads} threads, {rates.dtype}"
    try:
        known = {k: float(v) for k, v in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        known = {}
    best = max(known.get(kind, 0.0), rates.large_bytes_per_s)
    if best > known.get(kind, 0.0):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {kind: best}, indent=1) + "\n")
    return best
