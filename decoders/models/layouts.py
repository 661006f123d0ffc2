"""Names of a transformer layer's tensors in published checkpoints, both ways.

LlamaGen's original files have names of their own; all others have Llama's. Models with positions
along a line (Chameleon, Janus, Emu3) store query and key rows for "rotate half": entry i of a head
turns with entry i + d / 2. `Transformer` turns neighbours, so rows are reordered, and the scales
and shifts of normalised heads with them. Those are stored once for all heads ([d] or [1, d]:
Lumina-mGPT, and Anole's conversion), for groups of heads, or for every head ([H, d]: newer
transformers).
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.checkpoint import Source
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import Layer

HARMLESS = ("freqs_cis", "rotary_emb.inv_freq", "kv_cache", "codebook_used")
# A parameter of `Layer` -> the tensors that are stacked to it.
Names = dict[str, tuple[str, ...]]
LLAMA: Names = {
    "attention.wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.wo": ("self_attn.o_proj",),
    "feed_forward.w13": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.w2": ("mlp.down_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "attention_norm": ("input_layernorm",),
}
ORIGINAL: Names = {name: (name,) for name in LLAMA} | {
    "feed_forward.w13": ("feed_forward.w1", "feed_forward.w3")
}


def harmless(name: str) -> bool:
    """Tensors that checkpoints carry and nothing needs: tables that are computed, caches."""
    return any(part in name for part in HARMLESS)


def layer_sources(
    own: str, theirs: str, cfg: TransformerConfig, input_norm: bool = True, names: Names = LLAMA
) -> dict[str, Source]:
    """Parameters of one `Layer` under the prefix `own` from tensors under `theirs`."""
    found = {
        f"{own}{name}.weight": Source(tuple(f"{theirs}{part}.weight" for part in parts))
        for name, parts in names.items()
        if input_norm or name != "attention_norm"
    }
    heads = (cfg.heads, cfg.kv_heads)
    if cfg.positions == "line":  # published rows of queries and keys are ordered by halves
        matrices = f"{own}attention.wqkv.weight"
        found[matrices] = Source(
            found[matrices].names,
            lambda given: [*map(to_pairs, given[:2], heads), given[2]],
        )
    for kind in ("weight", "bias") if cfg.qk_norm else ():
        found[f"{own}attention.qk_norm.{kind}"] = Source(
            tuple(f"{theirs}self_attn.{name}_norm.{kind}" for name in "qk"),
            lambda given: [
                head_values(values, count, cfg.head_dim)
                for values, count in zip(given, heads, strict=True)
            ],
        )
    return found


def released_layer(layer: Layer, theirs: str, halves: bool = True) -> dict[str, Tensor]:
    """The tensors of a layer under Llama's names, which `layer_sources` reads back."""
    attention = layer.attention
    heads = (attention.heads, attention.kv_heads)
    query, key, value = attention.matrices()
    if halves:
        query, key = to_halves(query, heads[0]), to_halves(key, heads[1])
    stacked: dict[str, tuple[Tensor, ...]] = {
        "attention.wqkv": (query, key, value),
        "feed_forward.w13": layer.feed_forward.w13.weight.chunk(2),
    }
    named: dict[str, Tensor] = {}
    for name, parts in LLAMA.items():
        module = layer.get_submodule(name)
        if not isinstance(module, torch.nn.Identity):
            tensors: tuple[Tensor, ...] = stacked.get(name) or (module.weight,)  # type: ignore
            named |= {f"{part}.weight": t for part, t in zip(parts, tensors, strict=True)}
    if attention.qk_norm is not None:
        for kind, values in attention.qk_norm.named_parameters():
            for name, rows in zip("qk", values.split(heads), strict=True):
                by_head = to_halves(rows.flatten(), len(rows)).view(len(rows), -1)  # [H, d]
                named[f"self_attn.{name}_norm.{kind}"] = by_head
    return {f"{theirs}{name}": tensor for name, tensor in named.items()}


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


def head_values(values: Tensor, heads: int, head_dim: int) -> Tensor:
    """A scale or shift of normalised heads in any published shape -> [H, 1, d] in pairs. Raises
    DecoderError where it does not fit the heads."""
    whole = values.numel() and values.shape[-1:] == (head_dim,)
    if not whole or heads % (values.numel() // head_dim):
        raise DecoderError(
            f"scales of {heads} heads of {head_dim} must be [{head_dim}] or [groups, {head_dim}], "
            f"found {tuple(values.shape)}; does config.json belong to these weights?"
        )
    groups = values.reshape(-1, head_dim)  # [groups, d]
    every = groups.repeat_interleave(heads // len(groups), 0)  # [H, d]
    return to_pairs(every.flatten(), heads).view(heads, 1, head_dim)
