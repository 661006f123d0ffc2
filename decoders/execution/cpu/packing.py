"""A net's weights as the CPU kernel takes them, and which nets it can run.

What is packed is a copy, so it is made once the weights are final, for decoding only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from decoders.api import DecoderError
from decoders.execution.cpu import layers as cpu
from decoders.models.shape import TransformerConfig


@dataclass(frozen=True)
class Native:
    """layers: the layers, and the norm after them; project: a target's head, a drafter's ``fc``."""

    layers: cpu.NativeLayers
    project: cpu.NativeLinear


def reason(net: Any) -> str | None:
    """Why a target or drafter cannot run in the kernel; None where it can."""
    cfg: Any = getattr(net, "cfg", None)
    if not isinstance(cfg, TransformerConfig) or not hasattr(net, "packed"):
        return f"it runs the layers of decoders.models.transformer, here {type(net).__name__}"
    if cfg.qk_norm:
        return "it has no norm of queries and keys"
    if cfg.group > 1:
        return f"every head has keys of its own in it, here {cfg.group} share them"
    if cfg.head != "linear" and hasattr(net, "output"):
        return f"its output head is one matrix, here {cfg.head}"
    weight = net.layers[0].attention.wo.weight
    size = sum(p.nbytes for p in net.layers.parameters())
    if size > cpu.MOST:
        return f"it keeps a second copy of the weights, {size / 2**30:.1f} GiB here"
    return cpu.reason(cfg.width, cfg.heads, cfg.ffn, weight.dtype, weight.device)


def pack(net: Any) -> Native:
    """The packed weights of a target or drafter. Raises DecoderError where the kernel cannot run it
    (`reason`)."""
    why = reason(net)
    if why is not None:
        raise DecoderError(f"the CPU kernel cannot run these layers: {why}; set layers to torch")
    target = hasattr(net, "norm")  # a drafter has no norm behind its layer
    rows = [_weights(layer) for layer in net.layers]
    norm, linear = (net.norm.weight, net.output) if target else (None, net.fc)
    made = cpu.NativeLayers(rows, norm, net.rope, net.cfg.heads, net.cfg.norm_eps)
    return Native(made, cpu.NativeLinear(linear.weight, linear.bias))


def _weights(layer: Any) -> cpu.Weights:
    return cpu.Weights(
        None if isinstance(layer.attention_norm, nn.Identity) else layer.attention_norm.weight,
        layer.attention.wqkv.weight,
        layer.attention.wo.weight,
        layer.ffn_norm.weight,
        layer.feed_forward.w13.weight,
        layer.feed_forward.w2.weight,
    )
