"""EAGLE drafters in their published layout: config.json beside pytorch_model.bin or safetensors.

What the files do not say comes from the target: image side, prefix, rotation, padding. The released
drafters were trained without a padding mask (METHODS 6); ours say in config.json, under
``lantern_bench``, what they were trained with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel
from decoders.models.checkpoint import Checkpoint, Source, assign, fill, open_checkpoint
from decoders.models.eagle_net import EagleNet
from decoders.models.layouts import harmless, layer_sources, released_layer
from decoders.models.transformer import Transformer, TransformerConfig, cast, empty
from decoders.propose.drafters.eagle_chameleon import load_chameleon_eagle, save_chameleon_eagle
from decoders.propose.drafters.eagle_files import (
    grouping,
    require_one_layer,
    rows_of,
    write_drafter,
)

OWN = "lantern_bench"  # our section of config.json
CHOICES = ("pads", "prefix_rope")
SIDES = {"t2i": 16, "t2i2": 32}  # input_type of the released drafters -> image side
MISSING_OK = ("embed_tokens.weight", "fc.bias")


def load_eagle(source: str, model: ImageModel) -> tuple[EagleNet, dict[str, str]]:
    """A drafter for `model` from a folder or hub id, and the SHA-256 of its file.

    A missing embedding is the target's; a missing bias of ``fc`` is zero. Raises DecoderError:
    nothing there, another layout, more than one layer, another target's drafter.
    """
    target = model.target
    if not isinstance(target, Transformer):
        raise DecoderError(f"EAGLE drafters need a Transformer target, found {type(target)}")
    opened = open_checkpoint(source, what="EAGLE drafter")
    if target.cfg.conditioning == "tokens":
        return load_chameleon_eagle(opened, model), opened.sha256()
    cfg = drafter_config(opened, target.cfg)
    net: EagleNet = empty(EagleNet, cfg)
    given = opened.keys()
    absent = [name for name in MISSING_OK if name not in given]
    for name in absent:
        assign(net, name, _filler(name, target, cfg))
    sources = {name: Source((name,)) for name in ("embed_tokens.weight", "fc.weight", "fc.bias")}
    sources |= layer_sources("layers.0.", "layers.0.", cfg, input_norm=False)
    wanted = {name: s for name, s in sources.items() if name not in absent}
    fill(net, wanted, opened, model.dtype, model.device, harmless, given_elsewhere=absent)
    return cast(net, model.device, model.dtype), opened.sha256()


def drafter_config(opened: Checkpoint, target: TransformerConfig) -> TransformerConfig:
    """The drafter's shape: one layer on the target's places."""
    config = opened.config
    if not config:
        raise DecoderError(f"no config.json beside {opened.path}: expected it with the drafter")
    require_one_layer(opened)
    wrong = [
        f"{key}: drafter {config[key]}, target {expected}"
        for key, expected in (("hidden_size", target.width), ("vocab_size", rows_of(target)))
        if key in config and int(config[key]) != expected
    ]
    kind = str(config.get("input_type"))
    side = SIDES.get(kind, target.grid)
    if target.grid in SIDES.values() and side != target.grid:  # both of a released size
        wrong.append(f"input_type {kind}: {side} codes a side, target {target.grid}")
    if wrong:
        raise DecoderError(
            f"drafter {opened.path} and target do not fit: {'; '.join(wrong)}. Pick the drafter "
            "that was trained for this target"
        )
    own = {key: value for key, value in config.get(OWN, {}).items() if key in CHOICES}
    heads, group = grouping(config, target)
    return replace(
        target,
        layers=1,
        heads=heads,
        group=group,
        ffn=int(config.get("intermediate_size", target.ffn)),
        norm_eps=float(config.get("rms_norm_eps", target.norm_eps)),
        qk_norm=False,
        **own,
    )


def _filler(name: str, target: Transformer, cfg: TransformerConfig) -> Tensor:
    weight = target.tok_embeddings.weight
    return weight if name == "embed_tokens.weight" else weight.new_zeros(cfg.width)


def save_eagle(net: EagleNet, folder: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    """Writes a drafter in the published layout, which `load_eagle` reads; returns the file's
    SHA-256."""
    if net.cfg.conditioning == "tokens":
        return save_chameleon_eagle(net, folder, dtype)
    layer: Any = net.layers[0]
    named = {
        "embed_tokens.weight": net.embed_tokens.weight,
        "fc.weight": net.fc.weight,
        "fc.bias": net.fc.bias,
        **released_layer(layer, "layers.0.", halves=False),
    }
    own = {OWN: {key: getattr(net.cfg, key) for key in CHOICES}}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return write_drafter(net, named, folder, dtype, kind | own)
