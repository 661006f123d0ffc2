"""Which of a model's forwards run in the CPU kernel (`decoders.kernels.cpu`), and how its weights
are given to it.

Targets and EAGLE drafters keep a `native` attribute: None (PyTorch's operators) or what is made
here. It holds a packed copy of the weights, so it is made once they are final, for decoding only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from decoders.api import DecoderError
from decoders.kernels.cpu import layers as cpu
from decoders.models.shape import TransformerConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Native:
    """layers: the layers, and the norm after them; project: a target's head, a drafter's ``fc``."""

    layers: cpu.NativeLayers
    project: cpu.NativeLinear


def active(net: Any) -> Native | None:
    """The kernel that this forward goes through; None where there is none, and while a graph is
    traced or trained."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    found: Native | None = getattr(net, "native", None)
    return found


def reason(net: Any) -> str | None:
    """Why a target or drafter cannot run in the kernel; None where it can."""
    cfg: TransformerConfig | None = getattr(net, "cfg", None)
    if not isinstance(cfg, TransformerConfig) or not hasattr(net, "native"):
        return f"it runs the layers of decoders.models.transformer, here {type(net).__name__}"
    if cfg.qk_norm:
        return "it has no norm of queries and keys"
    weight = net.layers[0].attention.wo.weight
    size = sum(p.nbytes for p in net.layers.parameters())
    if size > cpu.MOST:
        return f"it keeps a second copy of the weights, {size / 2**30:.1f} GiB here"
    return cpu.reason(cfg.width, cfg.heads, cfg.ffn, weight.dtype, weight.device)


def make_native(net: Any) -> None:
    """Gives a target or drafter its packed weights, where it has none yet.

    Raises DecoderError where the kernel cannot run it (`reason`).
    """
    why = reason(net)
    if why is not None:
        raise DecoderError(f"the CPU kernel cannot run these layers: {why}; set layers to torch")
    if net.native is None:
        final = getattr(net, "norm", None)
        rows = [_weights(layer) for layer in net.layers]
        norm = None if final is None else final.weight
        made = cpu.NativeLayers(rows, norm, net.rope, net.cfg.heads, net.cfg.norm_eps)
        linear = net.output if final is not None else net.fc
        net.native = Native(made, cpu.NativeLinear(linear.weight, linear.bias))


def offer(net: Any, name: str) -> None:
    """`make_native` where the kernel runs the net called `name`; else PyTorch's operators stay,
    with a warning."""
    why = reason(net)
    if why is None:
        make_native(net)
    else:
        logger.warning("the CPU kernel does not run %s: %s; PyTorch does", name, why)


def _weights(layer: Any) -> cpu.Weights:
    return cpu.Weights(
        getattr(layer.attention_norm, "weight", None),  # none where the input is not normalised
        layer.attention.wqkv.weight,
        layer.attention.wo.weight,
        layer.ffn_norm.weight,
        layer.feed_forward.w13.weight,
        layer.feed_forward.w2.weight,
    )
