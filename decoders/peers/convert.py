"""Our target as a transformers causal language model: the same weights under other names.

Both are pre-norm layers with RMSNorm and SwiGLU, so three things are left to translate. Fused
matrices are split. Our rotation turns neighbours (2i, 2i + 1) of a head, Llama's the halves' places
(i, i + d/2): the rows of its query and key matrices are put in that order, which leaves every
product q k as it is. And its rotary module, which knows a line of positions only, is replaced by a
look-up in our table, so that grid, zero prefix and all are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.api import DecoderError, TextFeatures
from decoders.models.layouts import released_layer
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import Transformer


class PeerError(DecoderError):
    """A model that has no counterpart in the other library, or one that turned out to differ."""


class TableRotary(nn.Module):
    """cos and sin of a position, read from our rotary table [T, d / 2] complex."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        twice = torch.cat([rope, rope], -1)  # [T, d], Llama's halves
        self.register_buffer("cos", twice.real.to(dtype).contiguous(), persistent=False)
        self.register_buffer("sin", twice.imag.to(dtype).contiguous(), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """position_ids [R, T] -> cos and sin, [R, T, d] each."""
        return self.cos[position_ids], self.sin[position_ids]


@dataclass(frozen=True)
class Prompt:
    """A prefix as `generate` takes it. R rows: conditional, then unconditional."""

    embeds: Tensor  # [R, P, D]
    mask: Tensor  # [R, P] int64, 1 where valid
    positions: Tensor  # [R, P] int64, the place in the table: padding counts


def prompt_of(target: Transformer, text: TextFeatures, copies: int) -> Prompt:
    """The prefix of B prompts from our own caption network, R = copies * B rows."""
    rows, drop = text.paired(copies)
    embeds = target.cls_embedding(rows, drop)  # [R, P, D]
    mask = rows.valid(drop).long()
    positions = torch.arange(target.prefix, device=mask.device).expand(len(drop), -1)
    return Prompt(embeds, mask, positions)


def llama_of(target: Transformer) -> LlamaForCausalLM:
    """A `LlamaForCausalLM` on the target's weights, frozen; whatever need not be reordered is
    shared. Raises PeerError."""
    cfg = target.cfg
    convertible(cfg)
    weight = target.output.weight
    config = LlamaConfig(  # type: ignore[call-arg]  # the last two are of its base class
        vocab_size=cfg.vocab,
        hidden_size=cfg.width,
        intermediate_size=cfg.ffn,
        num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads,
        num_key_value_heads=cfg.heads,
        rms_norm_eps=cfg.norm_eps,
        max_position_embeddings=cfg.prefix + cfg.length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,  # an image ends by its length
        pad_token_id=None,
        attn_implementation="sdpa",
        dtype=weight.dtype,
    )
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    llama.model.rotary_emb = TableRotary(target.rope, weight.dtype)
    named = {
        "model.embed_tokens.weight": target.tok_embeddings.weight,
        "model.norm.weight": target.norm.weight,
        "lm_head.weight": weight,
    }
    for i in range(config.num_hidden_layers):
        layer: Any = target.layers[i]
        named |= released_layer(layer, f"model.layers.{i}.")
    llama.load_state_dict(named, assign=True)
    return llama.eval().requires_grad_(False)


def convertible(cfg: TransformerConfig) -> None:
    """Raises PeerError where Llama has no such part."""
    wrong = {
        "normalised queries and keys": cfg.qk_norm,
        "codes inside a larger vocabulary": cfg.conditioning == "tokens",
        "structural codes": cfg.row_end,
    }
    found = [name for name, there in wrong.items() if there]
    if found:
        raise PeerError(
            f"the model has {' and '.join(found)}, which transformers' Llama has not, so there is "
            "nothing to compare with on equal weights; use a LlamaGen model or model=tiny"
        )
