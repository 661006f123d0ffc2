"""The net of an EAGLE drafter: one layer of the target's kind over its features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from decoders.api import TextFeatures
from decoders.cache import KVCache
from decoders.distribution import take
from decoders.models.nets.shape import TransformerConfig, tables
from decoders.models.nets.transformer import Layer, attention_bias, rope_at


class EagleNet(nn.Module):
    """An EAGLE drafter's one layer, which predicts the target's next feature (2401.15077).
    ``config`` is the target's. input_norm: whether the layer normalises its input, as the released
    Chameleon drafters' does. Where the target's prefix is tokens, the drafter reads them; else its
    prefix codes are zeros."""

    rope: Tensor
    code_tokens: Tensor | None

    def __init__(self, config: TransformerConfig, input_norm: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.tokens or config.vocab, config.width)
        self.fc = nn.Linear(2 * config.width, config.width, bias=True)
        self.layers = nn.ModuleList([Layer(config, input_norm=input_norm)])
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)

    def tables(self) -> dict[str, Tensor | None]:
        """The target's tables, the rotary one shifted by a position."""
        every = tables(self.config)
        rope = every["rope"]
        return {"rope": None if rope is None else rope[1:], "code_tokens": every["code_tokens"]}

    def token_ids(self, codes: Tensor) -> Tensor:
        """Codes -> rows of the embedding, same shape."""
        return codes if self.code_tokens is None else self.code_tokens[codes]

    def prefix_ids(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """Rows of the embedding at the P - 1 prefix positions of the rows of `text`, [R, P - 1]:
        the token after each state, as in EAGLE; zeros where the prefix is no tokens."""
        if self.config.conditioning == "tokens":
            return text.token_ids(drop)[:, 1:]
        return torch.zeros_like(text.mask[:, 1:], dtype=torch.long)

    def valid(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """Which of the P - 1 prefix positions a query may see, [R, P - 1] bool: the released
        drafters have no padding mask (METHODS 6)."""
        valid = text.valid(drop)[:, : self.config.prefix - 1]
        return torch.ones_like(valid) if self.config.pads == "released" else valid

    def mix(self, ids: Tensor, features: Tensor) -> Tensor:
        """ids [R, T] rows of the embedding, features [R, T, D] -> layer input [R, T, D]."""
        embedded = self.embed_tokens(ids).to(features.dtype)
        return self.fc(torch.cat([embedded, features], -1))

    def stack(
        self,
        x: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        cache: KVCache,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Decoding: x [R, T, D] of `mix` at positions [R, T] of the rotary table; keys and values
        go to slots [R, T]; mask [R, T, S], see `decoders.cache`; wanted [R, W]: of which queries
        the result is read -> predicted features [R, W or T, D]."""
        rope = rope_at(self.rope, positions)[:, None]  # [R, 1, T, d / 2]
        bias = attention_bias(mask, x.dtype)
        out = self.layers[0](x, rope, bias, 0, cache, cache.flat_index(slots))
        return out if wanted is None else take(out, wanted)
