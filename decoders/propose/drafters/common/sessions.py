"""Drafters at work on B images, kept as R rows (conditional, then unconditional): what their
sessions share, and EAGLE's session (2401.15077, METHODS 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DraftSession, Prefill
from decoders.cache import CLOSED, KVCache, additive_mask, round_up
from decoders.distribution import code_logits, take
from decoders.models.nets.transformer import prefix_mask


class Session(DraftSession):
    """Drafts for B images with a net. A subclass allocates in `allocate` what it keeps of them."""

    def __init__(self, net: Any, prefill: Prefill, max_new: int, nodes: int) -> None:
        """prefill, max_new, nodes: see `decoders.api.Drafter.begin`."""
        self.net, self.target, self.cfg = net, prefill.model.target, prefill.sampling.cfg
        self.copies, self.max_new = prefill.sampling.guidance_rows, max_new
        self.root_code = torch.zeros_like(prefill.first)
        self.allocate(prefill, nodes)
        self.read_prefix(prefill)

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        """Allocates the session's tensors, on the images' device and in their final shapes."""

    def read_prefix(self, prefill: Prefill) -> None:
        """Reads the images' prefix."""

    def _rows(self, values: Tensor) -> Tensor:
        """[B, ...] -> [R, ...]."""
        return values if self.copies == 1 else torch.cat([values] * self.copies)

    def root(self, codes: Tensor, count: Tensor) -> Tensor:
        """Keeps the last committed code; returns its index among the codes, [B, 1]."""
        last = count[:, None] - 1
        self.root_code.copy_(codes.gather(1, last)[:, 0])
        return last


class DepthSession(Session):
    """A session whose node's distribution follows from its depth: `advance` fills ``logits``
    [B, n, V], the guided logits of all n depths behind the root."""

    depths: ClassVar[int]  # n

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        device = prefill.first.device
        self.logits = torch.zeros(prefill.batch, self.depths, self.target.vocab_size, device=device)
        size = max(self.target.length + self.max_new, self.depths)
        self.span = torch.arange(round_up(size), device=device)  # room for positions

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        del nodes, parents
        return self.logits[:, depth, None].expand(-1, codes.shape[1], -1)  # [B, w, V]


@dataclass(frozen=True)
class NetInput:
    """What a net with a cache reads in one call: T codes for each of R rows."""

    codes: Tensor  # [R, T]
    features: Tensor | None  # [R, T, D], of the positions above; None: the net reads none
    slots: Tensor  # [R, T], of the cache, written
    positions: Tensor  # [R, T], slots by depth
    mask: Tensor  # [R, T, S] float32, see `decoders.cache`
    wanted: Tensor | None = None  # [R, W]: of which queries the result is read; None: of all

    def pick(self, out: Tensor) -> Tensor:
        """[R, T, D] of all queries -> [R, W, D] of those whose result is read."""
        return out if self.wanted is None else take(out, self.wanted)


class CachedSession(Session):
    """A session with a key/value cache of its own. Node i writes i slots behind the root; its row
    of the attention mask is its parent's with one more visible slot."""

    first_slot: int  # of an image's first code
    features: Tensor | None = None  # [R, nodes + 1, D], what was predicted at every node, if read

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        rows, device = len(prefill.hidden), prefill.first.device
        capacity = round_up(self.first_slot + self.target.length + self.max_new + nodes + 1)
        self.cache = self._new_cache(rows, capacity)
        self.span = torch.arange(capacity, device=device)  # [S]
        self.prefix = torch.full((rows, 1, capacity), CLOSED, device=device)  # a mask [R, 1, S]
        self.masks = torch.full((rows, nodes + 1, capacity), CLOSED, device=device)
        self.root_slot = torch.zeros(rows, 1, dtype=torch.long, device=device)

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        raise NotImplementedError("a session with a cache says how it is made")

    def _forward(self, inputs: NetInput) -> Tensor:
        """-> [R, W or T, D], what the head reads."""
        raise NotImplementedError("a session says what its net does")

    def _visible(self, slots: Tensor) -> Tensor:
        """What committed codes at slots [R, T] see: the image's codes so far, and the prefix; a
        mask [R, T, S]."""
        image = (self.span >= self.first_slot) & (self.span <= slots[..., None])
        return torch.maximum(additive_mask(image), self.prefix)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        first = (self.first_slot + position)[:, None]  # [B, 1]
        slots = self._rows(first + self.span[: codes.shape[1]])  # [R, T]
        mask, last = self._visible(slots), self.root(codes, count)  # [B, 1]
        self.root_slot.copy_(self._rows(first + last))
        last = self._rows(last)  # [R, 1]
        out = self._forward(NetInput(self._rows(codes), hidden, slots, slots, mask, last))
        self.masks[:, :1] = take(mask, last)
        if self.features is not None:  # what the head reads then, too: no launch for a copy of it
            self.features[:, :1] = out
            out = self.features[:, :1]
        return self._logits(out, 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        codes, parents = self._rows(codes), self._rows(parents)  # [R, w]
        slots = self.root_slot + nodes  # [R, w]
        positions = (self.root_slot + depth).expand_as(slots)  # by depth, not by slot
        itself = additive_mask(self.span == slots[..., None])
        mask = torch.maximum(take(self.masks, parents), itself)  # [R, w, S]
        above = None if self.features is None else take(self.features, parents)
        out = self._forward(NetInput(codes, above, slots, positions, mask))
        self.masks.index_copy_(1, nodes, mask)
        if self.features is not None:
            self.features.index_copy_(1, nodes, out)
        return self._logits(out, depth)

    def _logits(self, hidden: Tensor, depth: int) -> Tensor:
        """Guided logits [B, w, V] of the codes after nodes of one depth; hidden [R, w, D]."""
        batch = len(self.root_code)
        positions = self.root_slot[:batch] - self.first_slot + depth + 1  # [B, 1]
        return code_logits(self.target, hidden, self.cfg, positions.expand(-1, hidden.shape[1]))


class EagleSession(CachedSession):
    """EAGLE's: everything is kept for the R rows, so that a draft copies only the new codes. Per
    node there are the predicted feature and its row of the attention mask.

    The prefix is P - 1 positions: the target's prefix states but the last, with the rotary table
    shifted by one accordingly.
    """

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        self.first_slot = self.target.prefix - 1  # P - 1
        super().allocate(prefill, nodes)
        rows, _, width = prefill.hidden.shape
        self.features = prefill.hidden.new_zeros(rows, nodes + 1, width)

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        config, weight = self.net.config, self.net.fc.weight
        return KVCache(
            1, rows, capacity, config.heads, config.head_dim, weight.dtype, weight.device
        )

    def read_prefix(self, prefill: Prefill) -> None:
        text, drop = prefill.text.paired(self.copies)
        valid = self.net.valid(text, drop)  # [R, P - 1]
        self.prefix[:, 0, : self.first_slot].copy_(additive_mask(valid))
        if self.first_slot:
            self._read_prefix(self.net.prefix_ids(text, drop), valid, prefill.hidden)

    def _read_prefix(self, ids: Tensor, valid: Tensor, hidden: Tensor) -> None:
        """ids, valid [R, P - 1]; hidden [R, P, D]."""
        net, size = self.net, self.first_slot
        mask = F.pad(
            prefix_mask(valid, net.config), (0, self.cache.capacity - size)
        )  # [R, P - 1, S]
        slots = self.span[:size].expand(len(valid), -1)  # [R, P - 1]
        net.stack(net.mix(ids, hidden[:, :size]), slots, slots, mask, self.cache)

    def _forward(self, inputs: NetInput) -> Tensor:
        net = self.net
        x = net.mix(net.token_ids(inputs.codes), inputs.features)
        return net.stack(x, inputs.positions, inputs.slots, inputs.mask, self.cache, inputs.wanted)
