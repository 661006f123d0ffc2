"""Preallocated key/value cache: append at given slots, keep an accepted path, never reallocate; and
the masks that say which slots a query sees.

Layout [layers, 2, R, H, S, d], head-major, so that attention reads contiguous matrices (on the CPU
that is six times faster than position-major). A row's slots may differ from its neighbour's.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from decoders.api import Draft

SLOT_MULTIPLE = 8  # slots: attention kernels of GPUs pad a mask of another width in every layer
HUGE_PAGE_BYTES = 2 * 2**20  # bytes of a huge page
KEYS, VALUES = 0, 1
Reads = tuple[tuple[int, int], ...]  # (layer, KEYS or VALUES), in the order in which they are read


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.zeros. On the CPU, memory larger than a huge page lies in huge pages where the system
    grants them: a step reads it from end to end, and small pages cost it as much again."""
    count, page = torch.Size(shape).numel(), HUGE_PAGE_BYTES
    size = -(-count * dtype.itemsize // page) * page
    if device.type != "cpu" or size <= page or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has no huge pages by default
    try:
        memory = mmap.mmap(-1, size + page, flags)  # some whole huge pages lie within; all zeros
    except OSError:  # not that much at a time; PyTorch's own error names the bytes
        return torch.zeros(shape, dtype=dtype, device=device)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % page
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)


def round_up(slots: int) -> int:
    """The next multiple of `SLOT_MULTIPLE`."""
    return -(-slots // SLOT_MULTIPLE) * SLOT_MULTIPLE


class KVCache:
    """Keys and values of R rows, S slots each. Slots are addressed by the caller, who lets no query
    see a slot before it is written: what a step has written is undone by forgetting it."""

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: Tensor | None = None,
    ) -> None:
        """memory: holds the numbers; None: new memory, of zeros."""
        shape = (layers, 2, rows, heads, capacity, head_dim)
        if memory is None:
            self.data = zeros(shape, dtype, device)
        else:
            self.data = memory.view(-1)[: torch.Size(shape).numel()].view(shape)
        self.rows, self.capacity = rows, capacity
        lines = torch.arange(rows * heads, device=device) * capacity
        self.line_start = lines.view(rows, heads, 1)  # [R, H, 1]
        self._flat = self.data.view(layers, 2, rows * heads * capacity, head_dim).unbind(0)
        self._layers = self.data.unbind(0)
        self._all = self.data.view(layers * 2, rows * heads * capacity, head_dim)

    def narrowed(self, capacity: int) -> KVCache:
        """A cache of as many or fewer slots in the same memory."""
        layers, _, rows, heads, _, head_dim = self.data.shape
        kind = self.data.dtype, self.data.device
        return KVCache(layers, rows, capacity, heads, head_dim, *kind, memory=self.data)

    def part(self, first: int, layers: int) -> KVCache:
        """Some of its layers, in the same memory."""
        _, _, rows, heads, capacity, head_dim = self.data.shape
        kind = self.data.dtype, self.data.device
        shape = layers, rows, capacity, heads, head_dim
        return KVCache(*shape, *kind, memory=self.data[first : first + layers])

    def clear(self) -> KVCache:
        """Fills this cache with zeros, for other images, and returns it. An attention
        weight of 0 hides every number but NaN, which an image that failed may have left."""
        self.data.zero_()
        return self

    def take(self, rows: Sequence[int], other: KVCache) -> None:
        """The content of other's rows, which are as many and have no more slots. Slots behind them
        keep what they have, which is finite and which no query sees."""
        self.data[:, :, rows, :, : other.capacity] = other.data

    def begin_as(self, other: KVCache) -> None:
        """The content of another's slots, as many as both have."""
        slots = min(self.capacity, other.capacity)
        self.data[..., :slots, :] = other.data[..., :slots, :]

    def flat_index(self, slots: Tensor) -> Tensor:
        """slots [R, T] -> [R * H * T] int64 into the flattened (row, head, slot) axis."""
        return (self.line_start + slots[:, None]).view(-1)  # [R * H * T]

    def write(self, layer: int, index: Tensor, both: Tensor) -> None:
        """both [2, R, H, T, d]: keys and values, to `index` from `flat_index`."""
        self._flat[layer].index_copy_(1, index, both.reshape(2, -1, both.shape[-1]))

    def write_all(self, slots: Tensor, both: Tensor) -> None:
        """both [layers, 2, R, H, T, d]: those of all layers, to slots [R, T]. It writes to the
        whole tensor: of a view of it the compiler would copy all, twice a step."""
        rows = torch.arange(self.rows, device=slots.device)[:, None]  # [R, 1]
        self.data[:, :, rows, :, slots] = both.permute(2, 4, 0, 1, 3, 5)

    def read(self, layer: int) -> Tensor:
        """Keys and values of all slots, [2, R, H, S, d]."""
        if torch.compiler.is_compiling():  # one tensor in and out of a graph, no two views of it
            return self._flat[layer].view(self.data.shape[1:])
        return self._layers[layer]

    def read_slots(self, reads: Reads, slots: Tensor) -> Tensor:
        """The keys or values at slots [R, T] that `reads` names, n of them -> [R, T, n, H d]."""
        index, (rows, length) = self.flat_index(slots), slots.shape
        width = self.data.shape[-1]
        parts = [
            self._all[2 * layer + which].index_select(0, index).view(rows, -1, length, width)
            for layer, which in reads
        ]  # [R, H, T, d] each
        return torch.stack(parts, 1).permute(0, 3, 1, 2, 4).flatten(3)

    def commit(self, source: Tensor, destination: Tensor) -> None:
        """Moves slots: position `source[r, i]` of row r to `destination[r, i]`, for every layer.

        source, destination [R, T] int64. Reads happen before writes, so the two may overlap.
        """
        moved = self._all.index_select(1, self.flat_index(source))  # [2 layers, R H T, d]
        self._all.index_copy_(1, self.flat_index(destination), moved)


class GrowingCache:
    """A cache for training: each forward appends to what earlier ones wrote, and gradients go
    through it."""

    def __init__(self) -> None:
        self.parts: dict[int, list[Tensor]] = {}  # by layer, [2, R, H, T, d] each

    def write(self, layer: int, index: Tensor, both: Tensor) -> None:
        del index  # all positions, in the order they came
        self.parts.setdefault(layer, []).append(both)

    def write_all(self, slots: Tensor, both: Tensor) -> None:
        for layer, one in enumerate(both):
            self.write(layer, slots, one)

    def read(self, layer: int) -> Tensor:
        parts = self.parts[layer]
        return torch.cat(parts, 3) if len(parts) > 1 else parts[0]


# ---- masks --------------------------------------------------------------------------------------
# Attention masks [R, T, S] are of two kinds: bool, True where a query may look; or float32, added
# to scores: 0 there, -inf elsewhere. What a step computes is of the second kind: on a CPU compiled
# code combines floats thirty times faster than bools.

CLOSED = float("-inf")


def bool_mask(mask: Tensor) -> Tensor:
    """The bool mask of one of either kind."""
    return mask if mask.dtype == torch.bool else mask == 0


def additive_mask(visible: Tensor) -> Tensor:
    """The float32 mask of a bool one."""
    return torch.where(visible, 0.0, CLOSED)


def cache_mask(open_: Tensor, codes_mask: Tensor, first: Tensor | int) -> Tensor:
    """The float32 mask [R, T, S] of T queries over a cache. All queries see the slots of `open_`
    [R, S]. Of the n slots from `first` ([R, 1] or one number) on, each query sees those of its row
    in `codes_mask` [R, T, n]."""
    rows, queries, size = codes_mask.shape
    slots = (first + torch.arange(size, device=codes_mask.device)).expand(rows, -1)  # [R, n]
    mask = open_[:, None].repeat(1, queries, 1)  # [R, T, S]
    return mask.scatter_(2, slots[:, None].expand(-1, queries, -1), codes_mask)


def ancestry(parents: Tensor, depth: int) -> Tensor:
    """parents [B, N + 1] of a tree of `depth` levels -> [B, N + 1, N + 1] bool: row n marks n and
    every node above it."""
    batch, nodes = parents.shape
    above = torch.eye(nodes, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    node = parents
    for _ in range(depth):
        above = above.scatter(2, node[..., None], True)
        node = parents.gather(1, node)
    return above


def ancestry_of(draft: Draft) -> Tensor:
    """That of a draft, see `Draft.ancestry`."""
    if draft.ancestry is None:
        return ancestry(draft.parents, draft.levels)
    return draft.ancestry
