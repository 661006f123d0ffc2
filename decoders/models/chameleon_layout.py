"""Names and rotation of Chameleon's published layers (transformers' `model.layers.N.`), both ways.

Published query and key rows are ordered for "rotate half": entry i of a head turns with entry
i + d / 2. `Transformer` turns neighbours, so rows are reordered, and the scales and shifts of the
normalised heads with them. Those are stored once for all heads ([d] or [1, d]: Lumina-mGPT, and
Anole's conversion), for groups of heads, or for every head ([H, d]: newer transformers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.checkpoint import Checkpoint, Source
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import Layer


def to_pairs(rows: Tensor, heads: int) -> Tensor:
    """[H d, ...] in halves -> [H d, ...] in neighbouring pairs. Raises DecoderError for rows that
    are no pairs of this many heads."""
    if not rows.ndim or not len(rows) or len(rows) % (2 * heads):
        raise DecoderError(
            f"rows of {heads} heads must be a multiple of {2 * heads}, found {list(rows.shape)}; "
            "does config.json belong to these weights?"
        )
    split = rows.reshape(heads, 2, -1, *rows.shape[1:])  # [H, 2, d / 2, ...]
    return split.transpose(1, 2).reshape(rows.shape)


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `to_pairs`."""
    split = rows.reshape(heads, -1, 2, *rows.shape[1:])  # [H, d / 2, 2, ...]
    return split.transpose(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class Projections(Source):
    """Query, key and value matrices on top of each other, queries and keys in pairs."""

    heads: int = 1
    kv_heads: int = 1

    def pieces(self, checkpoint: Checkpoint) -> list[Tensor]:
        query, key, value = (checkpoint.read(name) for name in self.names)
        return [to_pairs(query, self.heads), to_pairs(key, self.kv_heads), value]


def head_values(heads: int, head_dim: int) -> Callable[[Tensor], Tensor]:
    """A scale or shift in any published shape -> [H, 1, d] in pairs. Raises DecoderError
    where it does not fit the heads."""

    def change(values: Tensor) -> Tensor:
        whole = values.numel() and values.shape[-1:] == (head_dim,)
        if not whole or heads % (values.numel() // head_dim):
            raise DecoderError(
                f"scales of {heads} heads of {head_dim} must be [{head_dim}] or [groups, "
                f"{head_dim}], found {tuple(values.shape)}; does config.json belong to these "
                "weights?"
            )
        groups = values.reshape(-1, head_dim)  # [groups, d]
        every = groups.repeat_interleave(heads // len(groups), 0)  # [H, d]
        return to_pairs(every.flatten(), heads).view(heads, 1, head_dim)

    return change


@dataclass(frozen=True)
class HeadNorms(Source):
    """Scales or shifts of the query heads, then of the key heads."""

    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 1

    def pieces(self, checkpoint: Checkpoint) -> list[Tensor]:
        counts = (self.heads, self.kv_heads)
        return [
            head_values(count, self.head_dim)(checkpoint.read(name))
            for name, count in zip(self.names, counts, strict=True)
        ]


def layer_sources(
    own: str, theirs: str, cfg: TransformerConfig, input_norm: bool = True
) -> dict[str, Source]:
    """Parameters of one `Layer` under the prefix `own` from tensors under `theirs`."""
    at = f"{theirs}self_attn."
    names = ("q", "k", "v")
    found: dict[str, Source] = {
        "attention.wqkv.weight": Projections(
            tuple(f"{at}{name}_proj.weight" for name in names),
            heads=cfg.heads,
            kv_heads=cfg.kv_heads,
        ),
        "attention.wo.weight": Source((f"{at}o_proj.weight",)),
        "feed_forward.w13.weight": Source(
            (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight")
        ),
        "feed_forward.w2.weight": Source((f"{theirs}mlp.down_proj.weight",)),
        "ffn_norm.weight": Source((f"{theirs}post_attention_layernorm.weight",)),
    }
    if input_norm:
        found["attention_norm.weight"] = Source((f"{theirs}input_layernorm.weight",))
    if cfg.qk_norm:
        for kind in ("weight", "bias"):
            pair = (f"{at}q_norm.{kind}", f"{at}k_norm.{kind}")
            found[f"attention.qk_norm.{kind}"] = HeadNorms(
                pair, heads=cfg.heads, kv_heads=cfg.kv_heads, head_dim=cfg.head_dim
            )
    return {f"{own}{name}": source for name, source in found.items()}


def released_layer(layer: Layer, theirs: str) -> dict[str, Tensor]:
    """The tensors of a layer under their published names, which `layer_sources` reads back."""
    attention, feed = layer.attention, layer.feed_forward
    heads = (attention.heads, attention.kv_heads)
    query, key, value = attention.matrices()
    gate, up = feed.w13.weight.chunk(2)
    named = {
        "self_attn.q_proj.weight": to_halves(query, heads[0]),
        "self_attn.k_proj.weight": to_halves(key, heads[1]),
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": attention.wo.weight,
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": feed.w2.weight,
        "post_attention_layernorm.weight": layer.ffn_norm.weight,
    }
    if not isinstance(layer.attention_norm, torch.nn.Identity):
        named["input_layernorm.weight"] = layer.attention_norm.weight  # type: ignore[assignment]
    if attention.qk_norm is not None:
        for kind, values in attention.qk_norm.named_parameters():
            for name, own in zip(("q_norm", "k_norm"), values.split(heads), strict=True):
                rows = to_halves(own.flatten(), len(own)).view(len(own), -1)  # [H, d] or [K, d]
                named[f"self_attn.{name}.{kind}"] = rows
    return {f"{theirs}{name}": tensor for name, tensor in named.items()}
