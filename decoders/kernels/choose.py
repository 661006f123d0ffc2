"""Which attention is fastest for a shape on this machine: measured, checked, and recorded.

A forward is imitated: what is shared is prepared once, then every layer attends with a cache of its
own, so that no implementation finds its keys in a cache that a real step would have overwritten.
On GPUs the forward is by default captured as a CUDA graph, as the decoders' fastest backend runs
it, so that the launch costs of Python do not decide. The implementations take turns; the median
counts. One that cannot run is listed with its reason, one that computes something else is refused.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.kernels.candidates import AttentionShape, Implementation, implementations
from decoders.kernels.reference import tree_attention as reference
from decoders.kernels.runtime import capturing, without_waits

MODES = ("eager", "graph")
# Largest relative error of a head's output vector, against sums in float32. Of up to 8,000 slots
# float32 leaves 2e-6, on tensor cores too, in three tf32 parts; a single tf32 product leaves 5e-4.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def plain(shape: AttentionShape) -> dict[str, Any]:
    """A shape as a record holds it."""
    values = vars(shape).items()
    return {k: v if isinstance(v, int) else str(v).removeprefix("torch.") for k, v in values}


@dataclass(frozen=True)
class Inputs:
    """A random forward of a shape: `used` slots behind which nothing is visible."""

    qkv: Tensor  # [R, T, H + 2 K, d]
    rope: Tensor  # [R, T, d / 2]
    mask: Tensor  # [R, T, S]
    slots: Tensor  # [R, T]
    caches: list[tuple[Tensor, Tensor]]  # one a layer: keys, values [R, K, S, d]


def inputs(shape: AttentionShape, layers: int, used: int, seed: int = 0) -> Inputs:
    """The T queries are a random tree at the end of the used slots; all before is visible."""
    rows, queries, size = shape.rows, shape.queries, shape.head_dim
    if not queries <= used <= shape.slots:
        raise DecoderError(f"used slots must be in {queries}..{shape.slots}, found {used}")
    random = torch.Generator().manual_seed(seed)

    there = torch.Generator(shape.device).manual_seed(seed)  # a cache is slow to draw elsewhere

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=there, device=shape.device).to(shape.dtype)

    above = torch.rand(rows, queries, queries, generator=random) < 0.3  # [R, T, T]
    above = above.tril(-1) | torch.eye(queries, dtype=torch.bool)
    mask = torch.zeros(rows, queries, shape.slots, dtype=torch.bool)
    mask[:, :, : used - queries] = True
    mask[:, :, used - queries : used] = above
    angle = torch.randn(rows, queries, size // 2, generator=random)
    slots = torch.arange(used - queries, used).repeat(rows, 1)  # [R, T]
    cache = (rows, shape.kv_heads, shape.slots, size)
    first = (normal(*cache), normal(*cache))
    return Inputs(
        normal(rows, queries, shape.heads + 2 * shape.kv_heads, size),
        torch.polar(torch.ones_like(angle), angle).to(shape.device),
        mask.to(shape.device),
        slots.to(shape.device),
        [first, *((first[0].clone(), first[1].clone()) for _ in range(layers - 1))],
    )


def choose(
    shape: AttentionShape,
    *,
    layers: int = 8,
    used: int | None = None,
    repeats: int = 20,
    mode: str | None = None,
    among: Sequence[Implementation] | None = None,
) -> dict[str, Any]:
    """Measures the implementations on `shape` (all by default) and names the fastest, in plain
    values for a run's folder: milliseconds: a layer's share of a forward, by implementation;
    deviation: the largest relative error of an output vector; refused: why one was not measured.

    used: slots in use, S by default. mode: "graph" on CUDA, else "eager". layers: fewer where their
    caches would take more than a quarter of the device's free memory.

    Raises DecoderError where none can run.
    """
    mode = mode or ("graph" if shape.device.type == "cuda" else "eager")
    if mode not in MODES or (mode == "graph" and shape.device.type != "cuda"):
        raise DecoderError(f"mode is one of {MODES}, graph on CUDA only, found {mode!r}")
    used, layers = shape.slots if used is None else used, fitting(shape, layers)
    forwards: dict[str, Callable[[], Any]] = {}
    refused: dict[str, str] = {}
    deviation: dict[str, float] = {}
    here = torch.cuda.device(shape.device) if shape.device.type == "cuda" else nullcontext()
    with torch.inference_mode(), here:
        given = inputs(shape, layers, used)
        for one in implementations() if among is None else among:
            reason = one.reason(shape)
            if among is None and mode == "graph" and one.name == "flex":
                reason = "its block mask takes many launches a step: ask for it with attention=flex"
            try:
                if reason is None:
                    deviation[one.name] = _deviation(one, shape, given)
                    reason = _wrong(deviation[one.name], shape.dtype)
                if reason is None:
                    forwards[one.name] = _forward(one, shape, given, mode)
            except _failures() as error:
                reason = f"{type(error).__name__}: {str(error).strip()[:200]}"
            if reason is not None:
                refused[one.name] = reason
        if not forwards:
            raise DecoderError(f"no attention runs {shape}: {refused}")
        times = _timed(forwards, repeats, shape.device)
    milliseconds = {name: value / layers for name, value in times.items()}
    return {
        "shape": plain(shape),
        "name": min(milliseconds, key=lambda name: milliseconds[name]),
        "milliseconds": {k: round(v, 6) for k, v in milliseconds.items()},
        "deviation": {k: v if isfinite(v) else None for k, v in deviation.items()},
        "refused": refused,
        "mode": mode,
        "layers": layers,
        "used": used,
    }


def fitting(shape: AttentionShape, layers: int) -> int:
    """As many layers as have room for caches of their own next to those of the run."""
    if shape.device.type != "cuda":
        return layers
    size = torch.empty((), dtype=shape.dtype).element_size()
    cache = 2 * shape.rows * shape.kv_heads * shape.slots * shape.head_dim * size
    return max(1, min(layers, torch.cuda.mem_get_info(shape.device)[0] // 4 // cache))


def _failures() -> tuple[type[Exception], ...]:
    """What an implementation may fail with where the device or compiler does not take it."""
    known: tuple[type[Exception], ...] = (RuntimeError, ValueError, AssertionError, DecoderError)
    try:
        return (*known, importlib.import_module("triton.errors").TritonError)
    except ModuleNotFoundError:
        return known


def _deviation(one: Implementation, shape: AttentionShape, given: Inputs) -> float:
    """The largest relative error of a vector that `one` returns or writes; infinity for NaN."""
    keys, values = (tensor.clone() for tensor in given.caches[0])
    prepared = one.prepare(shape, given.mask, given.slots)
    found = (one.attend(given.qkv, given.rope, prepared, keys, values), keys, values)
    keys, values = (tensor.clone() for tensor in given.caches[0])
    right = reference(given.qkv, given.rope, given.mask, given.slots, keys, values)
    worst = 0.0
    for have, want in zip(found, (right, keys, values), strict=True):
        error = (have.float() - want.float()).norm(dim=-1)  # one a vector
        size = want.float().norm(dim=-1).clamp_min(1e-6)
        worst = max(worst, float((error / size).nan_to_num(float("inf")).max()))
    return worst


def _wrong(deviation: float, dtype: torch.dtype) -> str | None:
    allowed = TOLERANCE.get(dtype, TOLERANCE[torch.float32])
    if deviation <= allowed:
        return None
    return f"differs from the reference by {deviation:.3g} of a vector, allowed {allowed:g}"


def _forward(
    one: Implementation, shape: AttentionShape, given: Inputs, mode: str
) -> Callable[[], Any]:
    """A forward's attention, warmed up; captured where mode is "graph"."""

    def run() -> None:
        prepared = one.prepare(shape, given.mask, given.slots)
        for keys, values in given.caches:
            one.attend(given.qkv, given.rope, prepared, keys, values)

    if mode == "eager":
        run()
        return run
    aside = torch.cuda.Stream(shape.device)
    aside.wait_stream(torch.cuda.current_stream(shape.device))
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
        with without_waits():  # refused here, before it can break a recording
            run()
    torch.cuda.current_stream(shape.device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        run()
    return graph.replay


def _timed(
    forwards: dict[str, Callable[[], Any]], repeats: int, device: torch.device
) -> dict[str, float]:
    """Median milliseconds of each, in turns."""
    clock = cuda_milliseconds if device.type == "cuda" else _milliseconds
    found: dict[str, list[float]] = {name: [] for name in forwards}
    for turn in range(repeats + 1):
        for name, run in forwards.items():
            spent = clock(run)
            if turn:  # the first turn warms up
                found[name].append(spent)
    return {name: statistics.median(values) for name, values in found.items()}


def _milliseconds(run: Callable[[], Any]) -> float:
    start = perf_counter()
    run()
    return 1e3 * (perf_counter() - start)


def cuda_milliseconds(run: Callable[[], Any]) -> float:
    """By CUDA events, which leave out what Python takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
