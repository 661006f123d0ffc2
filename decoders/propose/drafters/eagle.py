"""EAGLE drafter (2401.15077, METHODS 3): one decoder layer that predicts the target's next feature.

Input at the position of a code: [embedding of the code ; target feature that predicted it], 2D ->
D, one layer without input norm, no final norm; the target's own head gives q. It runs on the
conditional and on the unconditional row, and its logits are guided like the target's. Its net is
`decoders.models.nets.eagle.EagleNet`.

Published files are config.json beside pytorch_model.bin or safetensors. What they do not say comes
from the target: image side, prefix, rotation, padding (LlamaGen's released drafters were trained
without a padding mask, METHODS 6). How those of Chameleon models differ (Anole, Lumina-mGPT; the
released code's `cnets` modules):

* The layer has an input norm, and normalised queries and keys; still no final norm before the head.
* The prefix are tokens: state i stands with token i + 1, so the P - 1 prefix positions have the ids
  1..P - 1 of the prompt, and state P - 1 has code 0. (The released *training* script pairs state i
  with token i; which of the two a published file was trained with, only its acceptance tells.)
* Positions are the target's, 1-D and rotated by halves. Those of the unconditional row count from
  its own first token; only differences matter, so the shared left padding gives the same numbers.
* Padding is masked, as in the target: both rows have masks of their own.
* The embedding is the target's input embedding (LlamaGen's released drafters hold the output head).
* ``config.json`` is not in every release; all but the number of heads follows from the tensors.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel
from decoders.models.loading.checkpoint import (
    Checkpoint,
    Origin,
    assign,
    cast,
    empty,
    open_checkpoint,
    read_parameters,
    some,
)
from decoders.models.loading.layouts import harmless, layer_origins, released_layer
from decoders.models.loading.weights import write_tensors
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer
from decoders.propose.drafters.common.drafter import (
    NetDrafter,
    check_match,
    no_drafter,
    require_equal,
)
from decoders.propose.drafters.common.eagle_learner import FeatureLearner, untrained_net
from decoders.propose.drafters.common.sessions import EagleSession

LAYER_PREFIX = "layers.0."
EMBEDDING_TENSOR, MATRIX_TENSOR, BIAS_TENSOR = "embed_tokens.weight", "fc.weight", "fc.bias"
GRID_OF_INPUT_TYPE = {"t2i": 16, "t2i2": 32}  # input_type of the released drafters -> image side


class Eagle(NetDrafter):
    """The drafter as a part: ``checkpoint`` names one of the model's drafters, or is a folder or
    hub id in the released layout."""

    session = EagleSession

    def __init__(self, model: ImageModel, checkpoint: str = "eagle") -> None:
        self.net = net_of(model, checkpoint)
        check_match(self.net, model.target)


def net_of(model: ImageModel, checkpoint: str) -> EagleNet:
    """The net under a name of the model's drafters, loaded once however many decoders use it.

    Raises DecoderError where there is no such drafter, or its files are not what they should be.
    """
    source = model.drafters.get(checkpoint, checkpoint)
    if isinstance(source, EagleNet):
        return source
    named = checkpoint in model.drafters
    if not named and "/" not in source and not Path(source).exists():
        raise no_drafter(model, checkpoint, "A folder or a hub id may be given too")
    net, digests = load_eagle(source, model)
    model.drafters[checkpoint] = net
    model.weights_sha256.update({f"{source}/{name}": value for name, value in digests.items()})
    return net


class EagleLearner(FeatureLearner):
    """Trains `EagleNet`. checkpoint: a drafter to go on from (a name of the model's drafters, a
    folder or a hub id); None starts from random weights and the target's embedding."""

    untrained = staticmethod(untrained_net)

    def load(self, model: ImageModel, checkpoint: str) -> EagleNet:
        stored = net_of(model, checkpoint)
        check_match(stored, model.target)
        return copy.deepcopy(stored).requires_grad_(True)

    def save(self, folder: Path) -> str:
        """Writes the published layout."""
        return save_eagle(self.net, folder)


# ---- published files ----------------------------------------------------------------------------


def load_eagle(source: str, model: ImageModel) -> tuple[EagleNet, dict[str, str]]:
    """A drafter for `model` from a folder or hub id, in the model's dtype, and the SHA-256 of its
    file.

    A missing embedding is the target's; a missing bias of ``fc`` is zero. Raises DecoderError:
    nothing there, another layout, more than one layer, another target's drafter.
    """
    target = model.target
    if not isinstance(target, Transformer):
        raise DecoderError(f"EAGLE drafters need a Transformer target, found {type(target)}")
    opened = open_checkpoint(source, what="EAGLE drafter")
    config = drafter_config(opened, target.config)
    input_norm = f"{LAYER_PREFIX}input_layernorm.weight" in opened.index
    net: EagleNet = empty(partial(EagleNet, input_norm=input_norm), config)
    if config.conditioning == "tokens":
        net.code_tokens = target.code_tokens
    weight = target.tok_embeddings.weight
    default = {EMBEDDING_TENSOR: weight, BIAS_TENSOR: weight.new_zeros(config.width)}
    absent = [name for name in default if name not in opened.index]
    for name in absent:
        assign(net, name, default[name])
    wanted = {
        name: Origin((name,))
        for name in (EMBEDDING_TENSOR, MATRIX_TENSOR, BIAS_TENSOR)
        if name not in absent
    }
    wanted |= layer_origins(LAYER_PREFIX, LAYER_PREFIX, config, input_norm)
    read_parameters(net, wanted, opened, model.dtype, model.device, harmless)
    return cast(net, model.device, model.dtype), opened.sha256()


def drafter_config(opened: Checkpoint, target: TransformerConfig) -> TransformerConfig:
    """The drafter's shape: one layer on the target's positions, as wide as its tensors; heads as
    config.json has them, else the target's. Raises DecoderError."""
    config, gate = opened.config, f"{LAYER_PREFIX}mlp.gate_proj.weight"
    if gate not in opened.index:
        raise DecoderError(
            f"{opened.path} is no EAGLE drafter: expected {gate}, found {some(opened.index)}"
        )
    layers = int(config.get("num_hidden_layers", 1))
    if layers != 1:
        raise DecoderError(
            f"{opened.path}: an EAGLE drafter has one layer, config.json says {layers}; is this "
            "the target's folder?"
        )
    ffn, width = opened.shape(gate, 2)
    pairs = {"width": (width, target.width)}
    if EMBEDDING_TENSOR in opened.index:
        pairs["vocabulary"] = opened.shape(EMBEDDING_TENSOR)[0], target.tokens or target.vocab
    side = GRID_OF_INPUT_TYPE.get(str(config.get("input_type")))
    if side is not None and target.grid in GRID_OF_INPUT_TYPE.values():  # both of a released size
        pairs["codes per side"] = side, target.grid
    require_equal(pairs)
    return replace(
        target,
        layers=1,
        heads=int(config.get("num_attention_heads", target.heads)),
        ffn=ffn,
        norm_eps=float(config.get("rms_norm_eps", target.norm_eps)),
        qk_norm=f"{LAYER_PREFIX}self_attn.q_norm.weight" in opened.index,
    )


def save_eagle(net: EagleNet, folder: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    """Writes a drafter as `load_eagle` reads it, and of config.json what it reads; returns the
    file's SHA-256."""
    config = net.config
    layer: Any = net.layers[0]
    named: dict[str, Tensor] = {
        EMBEDDING_TENSOR: net.embed_tokens.weight,
        MATRIX_TENSOR: net.fc.weight,
        BIAS_TENSOR: net.fc.bias,
        **released_layer(layer, LAYER_PREFIX, halves=config.conditioning == "tokens"),
    }
    described = {
        "num_attention_heads": config.heads,
        "num_hidden_layers": 1,
        "rms_norm_eps": config.norm_eps,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described) + "\n")
    return write_tensors(named, folder / "model.safetensors", dtype)
