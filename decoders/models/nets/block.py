"""The net of a block drafter: one forward drafts several codes (DFlash, 2602.06036; DSpark,
2607.05147).

**Context.** What is known of a committed slot is made of the values that some of the target's
layers keep there, and of its last state: c = RMSNorm(W_c [v^l1; v^l2; ...; h]). The papers read the
states behind those layers. Here a layer's values are a square matrix times its normed input, the
state behind the layer before, and W_c undoes a matrix; so nothing but the state's length is lost,
and the target keeps nothing for it. A draft layer makes keys and values of the context by the
projections that it has for its own input.

**Block.** The slots hold [root, MASK, MASK, ...], see the context and each other, both ways, and
slot k predicts the code k + 1 behind the root. Slots are the target's, rotary positions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.cache import VALUES, KVCache, Reads
from decoders.models.nets.shape import TransformerConfig, tables
from decoders.models.nets.transformer import Layer, attention_bias, rope_at, rotate


def read_layers(layers: int, named: Sequence[int] | None) -> Reads:
    """The values of the named ones of a target's layers, counted from 0; None: of an early one, the
    middle one and a late one. Raises DecoderError where there are no such layers."""
    edge = layers // 8
    every = sorted({edge, layers // 2, layers - max(1, edge)}) if named is None else list(named)
    right = all(0 <= layer < layers for layer in every) and len({*every}) == len(every)
    if not every or not right:
        raise DecoderError(
            f"drafter.reads: expected different ones of the target's {layers} layers, numbers from "
            f"0 to {layers - 1}, found {every}; null takes three by itself"
        )
    return tuple((layer, VALUES) for layer in every)


class BlockNet(nn.Module):
    """A drafter of blocks of up to `depth` codes for the target of a configuration. reads: see
    `read_layers`. rank: of the Markov head; 0: none, and no confidence head."""

    rope: Tensor

    def __init__(
        self,
        config: TransformerConfig,
        depth: int,
        layers: int,
        reads: Sequence[int] | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__()
        self.config, self.depth, self.size, self.rank = config, depth, layers, rank
        self.reads = read_layers(config.layers, reads)
        width = config.width
        self.fc = nn.Linear((len(self.reads) + 1) * width, width, bias=False)
        self.context_norm = nn.RMSNorm(width, config.norm_eps)
        self.mask = nn.Parameter(torch.randn(width) * 0.02)
        self.layers = nn.ModuleList([Layer(config) for _ in range(layers)])
        self.project: Any = None  # an execution's, in the place of products with `context_weights`
        self.norm = nn.RMSNorm(width, config.norm_eps)
        self.register_buffer("rope", tables(config)["rope"], persistent=False)
        if rank:
            self.before = nn.Embedding(config.vocab, rank)
            self.after = nn.Linear(rank, config.vocab, bias=False)
            self.confidence = nn.Linear(width + rank, 1)
        with torch.no_grad():  # it starts with little but the target's last state
            self.fc.weight.normal_(std=0.02)
            self.fc.weight[:, :width] += torch.eye(width)

    def context(self, hidden: Tensor, values: Tensor) -> Tensor:
        """hidden [R, T, D], what `reads` names [R, T, n, D] -> context [R, T, D]."""
        return self.context_norm(
            self.fc(torch.cat([hidden, values.flatten(2).to(hidden.dtype)], -1))
        )

    def context_weights(self) -> Tensor:
        """What makes keys and values of the context for all layers, [2 layers D, D]."""
        layers: Any = self.layers
        return torch.cat([layer.attention.wqkv.weight[self.config.width :] for layer in layers])

    def remember(self, context: Tensor, rope: Tensor, cache: Any, slots: Tensor) -> None:
        """Writes the context's keys and values for every layer: context [R, T, D], rope as of
        `rotate` for [R, H, T, d], slots [R, T] of the cache."""
        if self.project is not None:
            each = self.project(context).chunk(len(self.layers), -1)
        else:
            first = self.config.width  # behind the queries'
            layers: Any = self.layers
            each = [F.linear(context, one.attention.wqkv.weight[first:]) for one in layers]
        parts = [
            self._split(layer, both, rope) for layer, both in zip(self.layers, each, strict=True)
        ]  # [2, R, H, T, d] each
        cache.write_all(slots, torch.stack(parts))

    def _split(self, layer: Any, both: Tensor, rope: Tensor) -> Tensor:
        """A layer's products with the context [R, T, 2 D] -> keys and values [2, R, H, T, d]."""
        heads, norm = self.config.heads, layer.attention.qk_norm
        keys, values = both.unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
        if norm is not None:
            keys = F.layer_norm(keys, keys.shape[-1:], eps=1e-5)
            keys = keys * norm.weight[heads:] + norm.bias[heads:]
        return torch.stack([rotate(keys, rope), values])

    def block(self, root: Tensor, slots: int) -> Tensor:
        """Embedded roots [..., D] -> the input of their blocks [..., slots, D]."""
        masks = self.mask.to(root.dtype).expand(*root.shape[:-1], slots - 1, -1)
        return torch.cat([root[..., None, :], masks], -2)

    def stack(
        self, x: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """The layers over a cache: x [R, T, D] at positions [R, T] of the rotary table; keys and
        values go to slots [R, T]; mask [R, T, S] -> [R, T, D]."""
        rope = rope_at(self.rope, positions)[:, None]  # [R, 1, T, d / 2]
        return self.run(x, rope, attention_bias(mask, x.dtype), cache, cache.flat_index(slots))

    def run(self, x: Tensor, rope: Tensor, bias: Tensor, cache: Any, index: Tensor) -> Tensor:
        """`stack` on what was made for all layers."""
        for number, layer in enumerate(self.layers):
            x = layer(x, rope, bias, number, cache, index)
        return x

    def bias(self, codes: Tensor) -> Tensor:
        """The Markov head: codes [...] that stand before the predicted ones -> what is added to
        the logits [..., V]."""
        return self.after(self.before(codes))

    def sureness(self, states: Tensor) -> Tensor:
        """How sure drafts are to be accepted, before the sigmoid, but for the code before them:
        states [..., D] of the conditional row -> [...] float32."""
        weight = self.confidence.weight[0, : self.config.width].float()
        return (states.float() * weight).sum(-1) + self.confidence.bias.float()

    def sureness_after(self, codes: Tensor) -> Tensor:
        """What the codes before drafts add to it, [...] -> [...] float32."""
        weight = self.confidence.weight[0, self.config.width :].float()
        return (self.before(codes).detach().float() * weight).sum(-1)
