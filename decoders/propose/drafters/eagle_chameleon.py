"""EAGLE drafters of Chameleon models (Anole, Lumina-mGPT) in their published layout.

What the released decoding code does (its `cnets` modules), and how it differs from LlamaGen's:

* The layer is a whole Chameleon layer: **with** an input norm and with normalised queries and keys.
  ``fc`` takes [embedding of the token ; state], as everywhere; no final norm before the head.
* Its prefix are tokens: state i stands with token i + 1, so the P - 1 prefix places have the ids
  1..P - 1 of the prompt, and state P - 1 has code 0. (The released *training* script pairs state i
  with token i; which of the two a published file was trained with, only its acceptance tells.)
* Positions are the target's, 1-D and rotated by halves; those of the unconditional row count from
  its own first token. Only differences matter, so the shared left padding gives the same numbers.
* Padding is masked, as in the target: the conditional and the unconditional row have masks of their
  own. The prefix of LlamaGen's drafters is not masked.
* The embedding is the target's input embedding (LlamaGen's released drafters hold the output head).
* ``config.json`` is not in every release; all but the number of heads follows from the tensors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel
from decoders.models.checkpoint import Checkpoint, Source, assign, fill
from decoders.models.eagle_net import ChameleonEagleNet, EagleNet
from decoders.models.layouts import harmless, layer_sources, released_layer
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import Layer, Transformer, cast, empty
from decoders.propose.drafters.eagle_files import grouping, require_one_layer, write_drafter

LAYER = "layers.0."
EMBEDDING, BIAS = "embed_tokens.weight", "fc.bias"


def load_chameleon_eagle(opened: Checkpoint, model: ImageModel) -> EagleNet:
    """A drafter for `model` from an opened checkpoint, in the model's dtype.

    A missing embedding is the target's, a missing bias of ``fc`` is zero. Raises DecoderError: more
    than one layer, another layout, another target's drafter.
    """
    target = model.target
    if not isinstance(target, Transformer) or target.cfg.conditioning != "tokens":
        raise DecoderError("a Chameleon drafter needs a Chameleon target: Anole or Lumina-mGPT")
    cfg = drafter_config(opened, target.cfg)
    input_norm = f"{LAYER}input_layernorm.weight" in opened.index
    net: EagleNet = empty(ChameleonEagleNet if input_norm else EagleNet, cfg)
    net.code_tokens = target.code_tokens
    wanted = {name: Source((name,)) for name in (EMBEDDING, "fc.weight", BIAS)}
    absent = [name for name in (EMBEDDING, BIAS) if name not in opened.index]
    wanted = {name: source for name, source in wanted.items() if name not in absent}
    wanted |= layer_sources(LAYER, LAYER, cfg, input_norm)
    weight = target.tok_embeddings.weight
    if EMBEDDING in absent:
        assign(net, EMBEDDING, weight)
    if BIAS in absent:
        assign(net, BIAS, weight.new_zeros(cfg.width))
    fill(net, wanted, opened, model.dtype, model.device, harmless, given_elsewhere=absent)
    return cast(net, model.device, model.dtype)


def drafter_config(opened: Checkpoint, target: TransformerConfig) -> TransformerConfig:
    """The drafter's shape: one layer on the target's places."""
    given, gate = opened.config, f"{LAYER}mlp.gate_proj.weight"
    if gate not in opened.index:
        raise DecoderError(
            f"{opened.path} is no EAGLE drafter: expected {gate}, found {sorted(opened.index)[:4]}"
        )
    require_one_layer(opened)
    found = {"width": opened.shape(gate)[1]}
    expected = {"width": target.width}
    if EMBEDDING in opened.index:
        found["vocabulary"], expected["vocabulary"] = opened.shape(EMBEDDING)[0], target.tokens
    if found != expected:
        raise DecoderError(
            f"drafter {opened.path} and target do not fit: the drafter has {found}, the target "
            f"{expected}. Pick the drafter that was trained for this target"
        )
    heads, group = grouping(opened.config, target)
    return replace(
        target,
        layers=1,
        heads=heads,
        group=group,
        ffn=opened.shape(gate)[0],
        norm_eps=float(given.get("rms_norm_eps", target.norm_eps)),
        qk_norm=f"{LAYER}self_attn.q_norm.weight" in opened.index,
    )


def save_chameleon_eagle(net: EagleNet, folder: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    """Writes a drafter in the published layout, which `load_chameleon_eagle` reads; returns the
    file's SHA-256."""
    layer = net.layers[0]
    if not isinstance(layer, Layer):
        raise DecoderError(f"an EAGLE drafter has one transformer layer, found {type(layer)}")
    named: dict[str, Tensor] = {
        EMBEDDING: net.embed_tokens.weight,
        "fc.weight": net.fc.weight,
        BIAS: net.fc.bias,
    }
    own = {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "rope_theta": net.cfg.rope_base,
    }
    return write_drafter(net, named | released_layer(layer, LAYER), folder, dtype, own)
