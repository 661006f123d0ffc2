"""What must be known of a GPU before steps are captured on it: whether one works, and which
attention is the fastest.

Why attention is measured: PyTorch chooses by its own order, which changes from version to version
(cuDNN's comes first on Hopper from 2.13 on), and not by the time of one query over a cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._inductor.utils import is_big_gpu

from decoders.api import Target
from decoders.cache import round_up
from decoders.models.nets.attention import OPERATORS, attend_by

NO_CARD = "no CUDA device"
OLDEST_CAPABILITY = 8  # compute capability: Ampere


@cache
def card_fault() -> str | None:
    """Why nothing runs on the first CUDA device; None where it works."""
    try:
        if torch.version.hip or not torch.cuda.device_count():
            return NO_CARD
        name, (major, minor) = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
        if major < OLDEST_CAPABILITY:
            return f"{name} has compute capability {major}.{minor}, {OLDEST_CAPABILITY}.0 is needed"
        works = float(torch.ones(1, device="cuda").add(1)) == 2
    except (RuntimeError, AssertionError) as error:  # a driver that is too old, a broken card
        return str(error).strip().partition("\n")[0]
    return None if works else f"{name} computes 1 + 1 wrongly"


def products(device: torch.device) -> str:
    """Which matrix products compiled steps run: `measured`, the faster of PyTorch's library and
    Inductor's own, for each; `library` on cards of few multiprocessors (L4, 4060 Ti, a part of a
    larger card), where Inductor leaves out its own."""
    return "measured" if is_big_gpu(device) else "library"


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, after which the stream that was current is so again, also where the
    capture breaks: then torch leaves its own stream current."""
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        torch.cuda.set_stream(before)


# ---- attention ----------------------------------------------------------------------------------

CALLS_PER_GRAPH, GRAPH_REPLAYS = 32, 8  # of an attention in a graph, and of that


def fastest_attention(target: Target, rows: int, device: torch.device) -> tuple[str, int]:
    """The name in `OPERATORS` of the fastest for one query over a full cache of so many rows, ""
    where none of them runs; and the size of a head."""
    cache = target.new_cache(rows, round_up(target.prefix + target.length))
    keys, values = cache.read(0).unbind(0)  # [R, H, S, d]
    query = torch.randn_like(keys[:, :, :1])
    bias = query.new_zeros(rows, 1, 1, keys.shape[2])
    times: dict[str, float] = {}
    for name in OPERATORS:
        graph = torch.cuda.CUDAGraph()
        try:
            attend_by(name, query, keys, values, bias)
            torch.cuda.synchronize(device)
            with capturing(graph):
                for _ in range(CALLS_PER_GRAPH):
                    attend_by(name, query, keys, values, bias)
        except RuntimeError:  # it does not run here, or not at this size
            continue
        graph.replay()
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(GRAPH_REPLAYS):
            graph.replay()
        torch.cuda.synchronize(device)
        times[name] = time.perf_counter() - began
    return min(times, key=lambda name: times[name], default=""), keys.shape[-1]
