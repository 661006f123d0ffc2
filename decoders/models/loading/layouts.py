"""Where published checkpoints keep the parts of a `Transformer`, and how they are read into it.

LlamaGen's original files have names of their own; all others have Llama's. Chameleon stores query
and key rows for "rotate half": entry i of a head turns with entry i + d / 2. `Transformer` turns
neighbours, so rows are reordered, and the scales and shifts of normalised heads with them. Those
are stored for all heads ([d] or [1, d]), for groups, or for every head ([H, d]).
FlashAR's additions to LlamaGen's original files have names of their own (`FLASH_NORM`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.loading.checkpoint import (
    Checkpoint,
    Origin,
    cast,
    empty,
    read_parameters,
    some,
)
from decoders.models.nets.flash import FlashConfig, FlashTransformer
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Layer, Transformer

# Of a prefix that is no tokens the parameters, under the names of LlamaGen's release.
CONDITIONING = {
    "caption": ("cap_proj.fc1.weight", "cap_proj.fc2.weight", "uncond_embedding"),
    "class": ("embedding_table.weight",),
}
FLASH_NORM = "medusa_norm.weight"  # which FlashAR's checkpoints have
# The last one is the gate of those that have no other.
UNUSED_TENSORS = ("freqs_cis", "rotary_emb.inv_freq", "kv_cache", "codebook_used", "hv_mix_logit")
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


@dataclass(frozen=True)
class Layout:
    """Where a release keeps its parts. prefix: of the language model's names. elsewhere: prefixes
    of parts that are no language model. layer: names of a layer's tensors."""

    prefix: str
    embedding: str
    head: str
    elsewhere: tuple[str, ...] = ()
    layer: Names = field(default_factory=lambda: LLAMA)


def layout_of(opened: Checkpoint, family: str, layouts: Sequence[Layout]) -> Layout:
    """Returns the layout of a checkpoint. Raises DecoderError where it is not of the family."""
    for layout in layouts:
        if layout.embedding in opened.index:
            return layout
    expected = " or ".join(layout.embedding for layout in layouts)
    raise DecoderError(
        f"{opened.path} is no {family} checkpoint: expected {expected}, found {some(opened.index)}"
    )


def load_target(
    opened: Checkpoint,
    layout: Layout,
    config: TransformerConfig,
    tokens: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Transformer:
    """Reads the target of an opened checkpoint; tokens [V] int64: of the codes, where they are part
    of a larger vocabulary, of whose head only their rows are kept."""
    if tokens is not None and int(tokens.max()) >= config.tokens:
        raise DecoderError(
            f"{opened.path}: the vocabulary names token {int(tokens.max())}, config.json has "
            f"vocab_size {config.tokens}; do they belong together?"
        )
    flash = isinstance(config, FlashConfig)
    module: Transformer = empty(FlashTransformer if flash else Transformer, config)
    if tokens is not None:
        module.code_tokens = tokens
    head = layout.head
    if opened.config.get("tie_word_embeddings") and head not in opened.index:
        head = layout.embedding
    origins = {
        "tok_embeddings.weight": Origin((layout.embedding,)),
        "norm.weight": Origin((f"{layout.prefix}norm.weight",)),
        "output.weight": Origin((head,), None if tokens is None else lambda t: [t[0][tokens]]),
    }
    for name in CONDITIONING.get(config.conditioning, ()):
        origins[f"cls_embedding.{name}"] = Origin((f"{layout.prefix}cls_embedding.{name}",))
    for n in range(config.layers):
        theirs = f"{layout.prefix}layers.{n}."
        origins |= layer_origins(f"layers.{n}.", theirs, config, names=layout.layer)
    if isinstance(config, FlashConfig):
        for n in range(config.extra):
            theirs = f"layers.{config.layers + n}."
            origins |= layer_origins(f"vertical.layers.{n}.", theirs, config, names=layout.layer)
        for part in ("norm", "output"):
            origins[f"vertical.{part}.weight"] = Origin((f"medusa_{part}.weight",))
        if config.gate:
            for name in ("0.weight", "2.weight", "2.bias"):
                origins[f"gate.{name}"] = Origin((f"hv_gate_mlp.{name}",))
        elif "hv_mix_logit" in opened.index:
            origins["mix"] = Origin(("hv_mix_logit",), lambda t: [t[0].reshape(1)])
        else:  # the mean of both predictions
            origins["mix"] = Origin((FLASH_NORM,), lambda t: [t[0].new_zeros(1)])

    def unused(name: str) -> bool:
        return name.startswith(layout.elsewhere) or harmless(name)

    read_parameters(module, origins, opened, dtype, device, unused)
    return cast(module, device, dtype)


# ---- a layer ------------------------------------------------------------------------------------


def harmless(name: str) -> bool:
    """Tells tensors that checkpoints carry and nothing needs: tables that are computed, caches."""
    return any(part in name for part in UNUSED_TENSORS)


def layer_origins(
    prefix: str,
    theirs: str,
    config: TransformerConfig,
    input_norm: bool = True,
    names: Names = LLAMA,
) -> dict[str, Origin]:
    """Returns the parameters of one `Layer` under `prefix` from tensors under `theirs`."""
    origins = {
        f"{prefix}{name}.weight": Origin(tuple(f"{theirs}{part}.weight" for part in parts))
        for name, parts in names.items()
        if input_norm or name != "attention_norm"
    }
    heads = config.heads
    if config.positions == "line":  # published rows of queries and keys are ordered by halves
        matrices = f"{prefix}attention.wqkv.weight"
        origins[matrices] = Origin(
            origins[matrices].names,
            lambda t: [to_pairs(t[0], heads), to_pairs(t[1], heads), t[2]],
        )
    for kind in ("weight", "bias") if config.qk_norm else ():
        origins[f"{prefix}attention.qk_norm.{kind}"] = Origin(
            tuple(f"{theirs}self_attn.{name}_norm.{kind}" for name in "qk"),
            lambda tensors: [head_values(t, heads, config.head_dim) for t in tensors],
        )
    return origins


def released_layer(layer: Layer, theirs: str, halves: bool = True) -> dict[str, Tensor]:
    """Returns a layer's tensors under Llama's names, which `layer_origins` reads back."""
    attention = layer.attention
    query, key, value = attention.wqkv.weight.chunk(3)
    if halves:
        query, key = (to_halves(rows, attention.heads) for rows in (query, key))
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
            for name, rows in zip("qk", values.chunk(2), strict=True):
                by_head = to_halves(rows.flatten(), len(rows)).view(len(rows), -1)  # [H, d]
                named[f"self_attn.{name}_norm.{kind}"] = by_head
    return {f"{theirs}{name}": tensor for name, tensor in named.items()}


def to_pairs(rows: Tensor, heads: int) -> Tensor:
    """Reorders rows [H d, ...] from halves to neighbouring pairs. Raises DecoderError for rows that
    are no pairs of this many heads."""
    if not rows.ndim or not len(rows) or len(rows) % (2 * heads):
        raise DecoderError(
            f"rows of {heads} heads must be a multiple of {2 * heads}, found {list(rows.shape)}; "
            "does config.json belong to these weights?"
        )
    split = rows.reshape(heads, 2, -1, *rows.shape[1:])  # [H, 2, d / 2, ...]
    return split.transpose(1, 2).reshape(rows.shape)


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """Undoes `to_pairs`."""
    split = rows.reshape(heads, -1, 2, *rows.shape[1:])  # [H, d / 2, 2, ...]
    return split.transpose(1, 2).reshape(rows.shape)


def head_values(values: Tensor, heads: int, head_dim: int) -> Tensor:
    """Brings a scale or shift of normalised heads from any published shape to [H, 1, d] in pairs.
    Raises DecoderError where it does not fit the heads."""
    whole = values.numel() and values.shape[-1:] == (head_dim,)
    if not whole or heads % (values.numel() // head_dim):
        raise DecoderError(
            f"scales of {heads} heads of {head_dim} must be [{head_dim}] or [groups, {head_dim}], "
            f"found {tuple(values.shape)}; does config.json belong to these weights?"
        )
    groups = values.reshape(-1, head_dim)  # [groups, d]
    every = groups.repeat_interleave(heads // len(groups), 0)  # [H, d]
    return to_pairs(every.flatten(), heads).view(heads, 1, head_dim)
