"""What the published layouts of EAGLE drafters share: one layer, and a config.json beside the
weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.checkpoint import Checkpoint
from decoders.models.eagle_net import EagleNet
from decoders.models.shape import TransformerConfig
from decoders.models.weights import write_tensors


def rows_of(cfg: TransformerConfig) -> int:
    """Rows of a drafter's embedding."""
    return cfg.tokens or cfg.vocab


def write_drafter(
    net: EagleNet, named: dict[str, Tensor], folder: Path, dtype: torch.dtype, own: dict[str, Any]
) -> str:
    """Writes tensors under their published names beside a config.json, to which `own` adds what one
    family of drafters says; returns the weights' SHA-256."""
    cfg = net.cfg
    config = {
        "hidden_act": "silu",
        "hidden_size": cfg.width,
        "intermediate_size": cfg.ffn,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        "num_hidden_layers": 1,
        "rms_norm_eps": cfg.norm_eps,
        "vocab_size": rows_of(cfg),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | own, indent=2) + "\n")
    return write_tensors(named, folder / "model.safetensors", dtype)


def grouping(config: Mapping[str, Any], target: TransformerConfig) -> tuple[int, int]:
    """A drafter's heads, and how many share keys and values: the target's, where config.json does
    not say. Raises DecoderError where they cannot share."""
    heads = int(config.get("num_attention_heads", target.heads))
    usual = target.kv_heads if heads == target.heads else heads
    shared = int(config.get("num_key_value_heads") or usual)
    if heads % shared:
        raise DecoderError(
            f"the drafter's config.json has {heads} heads that share {shared} of keys and values: "
            "expected a multiple"
        )
    return heads, heads // shared


def require_one_layer(opened: Checkpoint) -> None:
    """DecoderError where config.json speaks of more layers than an EAGLE drafter has."""
    layers = int(opened.config.get("num_hidden_layers", 1))
    if layers != 1:
        raise DecoderError(
            f"{opened.path}: an EAGLE drafter has one layer, config.json says {layers}; is this "
            "the target's folder?"
        )
