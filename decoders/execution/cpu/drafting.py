"""An EAGLE drafter's session through the CPU kernel: every call reads and writes the session's
features and masks in place.

`NativeDrafter` is what all calls share: the weights and the session's memory. It drafts on from the
nodes of a level, as `decoders.propose.drafters.eagle.EagleSession.expand` does in some twenty
operators; `advancing` and `growing` hold the other calls.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.cache import KVCache
from decoders.execution.cpu.layers import NativeLayers, NativeLinear, check
from decoders.execution.cpu.library import Expand


@dataclass(frozen=True)
class Net:
    """A drafter's weights: its one layer; fc, and the target's head, packed; embedding [tokens, D];
    tokens [V] int64, the codes' rows of the embedding, or None where they are the codes."""

    layers: NativeLayers
    fc: NativeLinear
    head: NativeLinear
    embedding: Tensor
    tokens: Tensor | None


@dataclass(frozen=True)
class State:
    """A session's tensors, contiguous, n places for nodes: features [R, n, D], seen [R, n, S] bool,
    root_slot [R, 1] and root_code [B] int64."""

    features: Tensor
    seen: Tensor
    root_slot: Tensor
    root_code: Tensor
    cache: KVCache


class NativeDrafter:
    """One session. Raises DecoderError where a code has no row in the embedding."""

    def __init__(self, net: Net, state: State, cfg: float) -> None:
        self.net, self.state, self.cfg = net, state, cfg
        self.rows, self.batch = state.cache.rows, len(state.root_code)
        self.width, self.vocab = net.layers.width, net.head.outputs
        self.dtype = net.layers.dtype
        self.half = ctypes.c_int(self.dtype == torch.bfloat16)
        check(state.features, self.width, self.dtype)
        check(net.embedding, self.width, self.dtype)
        tokens = torch.tensor([0, self.vocab - 1]) if net.tokens is None else net.tokens
        if int(tokens.min()) < 0 or int(tokens.max()) >= len(net.embedding):
            raise DecoderError(
                f"the drafter's codes are rows {int(tokens.min())}..{int(tokens.max())} of an "
                f"embedding of {len(net.embedding)}; is it this target's drafter?"
            )

    def structure(self, width: int) -> tuple[Expand, tuple[Tensor, ...]]:
        """A call at up to `width` nodes of every image, and what it refers to; logits [B, w, V]
        come first there."""
        state, rows = self.state, self.rows
        x = state.features.new_empty(2, rows, width, self.width)  # input, output
        mixed = state.features.new_empty(rows, width, 2 * self.width)
        places = state.root_slot.new_empty(2, rows, width)
        mask = state.seen.new_empty(rows, width, state.cache.capacity)
        logits = torch.empty(self.batch, width, self.vocab)
        raw = torch.empty(rows, width, self.vocab)
        call = self.of(x[0], places[0], places[1], mask, x[1])
        call.mixed, call.raw, call.logits = mixed.data_ptr(), raw.data_ptr(), logits.data_ptr()
        return call, (logits, raw, mixed, x, places, mask, self.net.layers.scratch)

    def of(self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, out: Tensor) -> Expand:
        """A call of these tensors of the layer, which must live as long as it, without memory of
        its own."""
        net, state = self.net, self.state
        layer = net.layers.forward(x, places, slots, mask, state.cache.data, out)
        bias, tokens = net.fc.bias, net.tokens
        return Expand(
            layer, self.batch, state.features.shape[1], net.embedding.data_ptr(),
            len(net.embedding), None if tokens is None else tokens.data_ptr(),
            net.fc.weight.data_ptr(), None if bias is None else bias.data_ptr(),
            net.head.weight.data_ptr(), self.vocab, self.cfg, state.features.data_ptr(),
            state.seen.data_ptr(), state.root_slot.data_ptr(),
        )  # fmt: skip
