"""Preallocated key/value cache: append at given slots, keep an accepted path, never reallocate.

Layout [layers, 2, R, S, H, d]: one slot holds a position's keys (or values) of all heads, so that a
write is one indexed copy and a row's positions may differ from its neighbour's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import DecoderError


class KVCache:
    """Keys and values of R rows, S slots each. Slots are addressed by the caller."""

    def __init__(
        self, layers: int, rows: int, capacity: int, heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:
        shape = (layers, 2, rows, capacity, heads, head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.rows, self.capacity = rows, capacity
        self.row_start = torch.arange(rows, device=device)[:, None] * capacity  # [R, 1]
        flat = self.data.view(layers, 2, rows * capacity, heads, head_dim)
        self._flat = [(flat[i, 0], flat[i, 1]) for i in range(layers)]
        by_head = self.data.transpose(3, 4)  # [layers, 2, R, H, S, d]
        self._views = [(by_head[i, 0], by_head[i, 1]) for i in range(layers)]
        self._all = self.data.view(layers * 2, rows * capacity, heads * head_dim)

    def flat_index(self, slots: Tensor) -> Tensor:
        """slots [R, T] -> [R * T] int64 into the flattened (row, slot) axis."""
        return (self.row_start + slots).view(-1)  # [R * T]

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values [R, T, H, d] to `index` from `flat_index`."""
        k, v = self._flat[layer]
        k.index_copy_(0, index, keys.reshape(-1, *keys.shape[2:]))
        v.index_copy_(0, index, values.reshape(-1, *values.shape[2:]))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots, each [R, H, S, d]."""
        return self._views[layer]

    def commit(self, source: Tensor, destination: Tensor) -> None:
        """Moves slots: position `source[r, i]` of row r to `destination[r, i]`, for every layer.

        source, destination [R, T] int64. Reads happen before writes, so the two may overlap.
        """
        if source.shape != destination.shape:
            raise DecoderError(f"cache.commit: source {tuple(source.shape)} and destination "
                               f"{tuple(destination.shape)} must have one shape [R, T]")
        moved = self._all.index_select(1, self.flat_index(source))  # [2 layers, R T, H d]
        self._all.index_copy_(1, self.flat_index(destination), moved)
