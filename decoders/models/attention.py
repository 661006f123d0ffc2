"""Attention of T new codes over a cache of S slots, and the rotation of queries and keys before it.

On a GPU PyTorch's fused operator computes attention at every shape, with the tree's mask as an
additive bias; on a CPU plain products do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.cache import additive_mask


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask [R, T, S] of either kind (`decoders.cache`) -> [R, 1, T, S] of 0 and -inf, made once per
    forward for all layers."""
    return (additive_mask(mask) if mask.dtype == torch.bool else mask).to(dtype)[:, None]


def causal_mask(valid: Tensor, turn: Tensor | None = None) -> Tensor:
    """Validity [R, T] -> causal mask [R, T, T] bool; turn [T]: a query sees none of a later one. A
    padded query sees itself only, so no row is empty; no valid position reads its state."""
    size = valid.shape[1]
    order = torch.arange(size, device=valid.device) if turn is None else turn
    eye = torch.eye(size, dtype=torch.bool, device=valid.device)
    return ((order[:, None] >= order) & valid[:, None, :]) | eye


def attend(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T + bias) v: query [R, H, T, d], keys, values [R, H, S, d], bias as of
    `attention_bias`; scale: 1 / sqrt(d) where there is none -> [R, H, T, d].

    On a CPU plain matrix products beat the fused operator at these sizes: 6 times at T = 1, 1.7
    times at T = 58, and 1.4 times in a training step, as they use the bf16 units throughout. A
    training step in float32 is the exception: the fused operator makes it up to 1.4 times as fast.
    """
    trains = query.requires_grad and query.dtype == torch.float32
    if query.device.type != "cpu" or trains:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.add(bias, query @ keys.transpose(-1, -2), alpha=scale)
    return scores.softmax(-1) @ values


def rope_at(table: Tensor, places: Tensor) -> Tensor:
    """Rows of a rotary table complex64 [places, d / 2] at places [...] -> [..., d / 2]. Compiled:
    float32 [..., d / 2, 2], since Inductor writes no complex kernels."""
    if torch.compiler.is_compiling():
        table = torch.view_as_real(table)
    return table[places.clamp_max(len(table) - 1)]


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary embedding: x [..., d], neighbouring entries as complex numbers, times `rope` as of
    `rope_at`; in float32 inside, the dtype of x outside."""
    pairs = x.float().unflatten(-1, (-1, 2))  # [..., d / 2, 2]
    if rope.is_complex() and not torch.compiler.is_compiling():
        turned = torch.view_as_real(torch.view_as_complex(pairs) * rope)
        return turned.flatten(-2).to(x.dtype)
    cos, sin = (torch.view_as_real(rope) if rope.is_complex() else rope).unbind(-1)
    re, im = pairs.unbind(-1)
    turned = torch.stack([re * cos - im * sin, re * sin + im * cos], -1)
    return turned.flatten(-2).to(x.dtype)
