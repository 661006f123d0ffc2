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
    kv_heads: int = 0  # of keys and values, where queries share them; 0: as many as of queries

    def pieces(self, checkpoint: Checkpoint) -> list[Tensor]:
        query, key, value = (checkpoint.read(name) for name in self.names)
        shared = self.kv_heads or self.heads
        key = to_pairs(key, shared)
        return [
            to_pairs(query, self.heads),
            *(shared_rows(m, shared, self.heads) for m in (key, value)),
        ]


def shared_rows(rows: Tensor, shared: int, heads: int) -> Tensor:
    """Keys or values of grouped-query attention, [H' d, D] -> [H d, D]: every one of H' heads again
    for each query head that reads it."""
    if shared == heads:
        return rows
    groups = rows.reshape(shared, -1, *rows.shape[1:])  # [H', d, D]
    return groups.repeat_interleave(heads // shared, 0).flatten(0, 1)


def head_values(heads: int, head_dim: int) -> Callable[[Tensor], Tensor]:
    """A scale or shift in any published shape -> [1, 1, H, 1, d] in pairs. Raises DecoderError
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
        return to_pairs(every.flatten(), heads).view(1, 1, heads, 1, head_dim)

    return change


def layer_sources(
    own: str,
    theirs: str,
    heads: int,
    head_dim: int,
    input_norm: bool = True,
    qk_norm: bool = True,
    kv_heads: int = 0,
) -> dict[str, Source]:
    """Parameters of one `Layer` under the prefix `own` from tensors under `theirs`."""
    at = f"{theirs}self_attn."
    names = ("q", "k", "v")
    found: dict[str, Source] = {
        "attention.wqkv.weight": Projections(
            tuple(f"{at}{name}_proj.weight" for name in names),
            heads=heads,
            kv_heads=kv_heads,
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
    if qk_norm:
        change = head_values(heads, head_dim)
        for kind in ("weight", "bias"):
            pair = (f"{at}q_norm.{kind}", f"{at}k_norm.{kind}")
            found[f"attention.qk_norm.{kind}"] = Source(pair, change)
    return {f"{own}{name}": source for name, source in found.items()}


def released_layer(layer: Layer, theirs: str) -> dict[str, Tensor]:
    """The tensors of a layer under their published names, which `layer_sources` reads back."""
    attention, feed = layer.attention, layer.feed_forward
    heads = attention.heads
    query, key, value = attention.wqkv.weight.chunk(3)
    gate, up = feed.w13.weight.chunk(2)
    named = {
        "self_attn.q_proj.weight": to_halves(query, heads),
        "self_attn.k_proj.weight": to_halves(key, heads),
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
            for name, half in zip(("q_norm", "k_norm"), values, strict=True):  # [1, H, 1, d]
                rows = to_halves(half.flatten(), heads).view(heads, -1)  # [H, d]
                named[f"self_attn.{name}.{kind}"] = rows
    return {f"{theirs}{name}": tensor for name, tensor in named.items()}
