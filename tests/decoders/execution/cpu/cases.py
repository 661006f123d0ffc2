"""Random networks and steps on which the CPU kernel is compared with PyTorch's operators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.cache import KVCache
from decoders.execution.cpu.library import missing
from decoders.models.loading.checkpoint import cast
from decoders.models.nets.transformer import Transformer, TransformerConfig, prefix_mask

PREFIX = 4
REASON = missing()
needs_kernel = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernel: {REASON}")


def network(
    dim: int = 16,
    heads: int = 2,
    dtype: torch.dtype = torch.float32,
    kind: Callable[[TransformerConfig], Any] = Transformer,
    **shape: Any,
) -> Any:
    """A target (or drafter) with random weights, norms included; without the kernel."""
    sizes = {"vocab": 24, "layers": 2, "ffn": 48, "grid": 4, "prefix": PREFIX, "text_width": 8}
    cfg = TransformerConfig(width=heads * dim, heads=heads, **(sizes | shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dim)
        net = kind(cfg)
        for name, parameter in net.named_parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            elif "norm" in name:
                torch.nn.init.uniform_(parameter, 0.5, 2)
    net.eval().requires_grad_(False)
    return cast(net, torch.device("cpu"), dtype)


@dataclass
class Step:
    """A forward's arguments: x [R, T, D], positions and slots [R, T], mask [R, T, S], and the cache
    that it starts from."""

    x: Tensor
    positions: Tensor
    slots: Tensor
    mask: Tensor
    cache: KVCache

    def run(self, net: Any) -> tuple[Tensor, Tensor]:
        """The result [R, T, D] and the cache's content afterwards; `cache` stays as it was."""
        cache = copy.deepcopy(self.cache)
        with torch.inference_mode():
            out = net.stack(self.x, self.positions, self.slots, self.mask, cache)
        return out, cache.data

    def alone(self, row: int, query: int, written: Tensor) -> Step:
        """One query of one row; `written`: a cache in which all others have left their keys."""
        r, t = slice(row, row + 1), slice(query, query + 1)
        layers, _, _, heads, capacity, size = written.shape
        other = KVCache(layers, 1, capacity, heads, size, written.dtype, written.device)
        other.data.copy_(written[:, :, r])
        return Step(self.x[r, t], self.positions[r, t], self.slots[r, t], self.mask[r, t], other)


def prefill(net: Any, rows: int = 3, capacity: int = 9) -> Step:
    """The prefix of rows that are padded by 0, 1, ... positions, into an empty cache."""
    pads = torch.arange(rows)[:, None] % PREFIX  # [R, 1]
    slots = torch.arange(PREFIX).expand(rows, -1)  # [R, P]
    mask = prefix_mask(slots >= pads, net.config)  # [R, P, P]
    mask = F.pad(mask, (0, capacity - PREFIX))  # [R, P, S]
    cache = _cache(net, rows, capacity)
    return Step(_states(net, rows, PREFIX), slots, slots, mask, cache)


def tree(net: Any, rows: int, nodes: int, capacity: int = 29) -> Step:
    """A root and nodes - 1 descendants a row, at slots behind a path of another length and a prefix
    of another padding in every row; the cache holds random keys, also where no one may look."""
    random = torch.Generator().manual_seed(nodes)
    cache = _cache(net, rows, capacity)
    cache.data.copy_(torch.randn(cache.data.shape, generator=random))
    start = torch.randint(PREFIX, capacity - nodes + 1, (rows, 1), generator=random)  # [R, 1]
    pads = torch.arange(rows)[:, None] % PREFIX  # [R, 1]
    every = torch.arange(capacity)
    slots = start + torch.arange(nodes)  # [R, T]
    mask = ((every >= pads) & (every < start))[:, None].repeat(1, nodes, 1)  # [R, T, S]
    depth = torch.zeros(nodes, dtype=torch.long)
    for node in range(nodes):
        if node:
            parent = int(torch.randint(node, (1,), generator=random))
            mask[:, node] |= mask[:, parent]
            depth[node] = depth[parent] + 1
        mask[:, node].scatter_(1, slots[:, node : node + 1], True)
    return Step(_states(net, rows, nodes), start + depth, slots, mask, cache)


def _states(net: Any, rows: int, queries: int) -> Tensor:
    random = torch.Generator().manual_seed(queries)
    x = torch.randn(rows, queries, net.config.width, generator=random)
    return x.to(net.layers[0].attention.wo.weight.dtype)


def _cache(net: Any, rows: int, capacity: int) -> KVCache:
    cfg, dtype = net.config, net.layers[0].attention.wo.weight.dtype
    layers = len(net.layers)
    return KVCache(layers, rows, capacity, cfg.heads, cfg.head_dim, dtype, torch.device("cpu"))


def error(mine: Tensor, wanted: Tensor) -> float:
    """The largest difference over the largest number."""
    return float((mine.double() - wanted.double()).abs().max() / wanted.double().abs().max())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of PyTorch, and thereby of the kernel."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
