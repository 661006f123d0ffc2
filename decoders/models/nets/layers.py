"""A transformer's layer: attention of T new codes over a cache of S slots, the rotation of queries
and keys before it, and SwiGLU.

On a GPU PyTorch's fused operator computes attention at every shape, with the tree's mask as an
additive bias; on a CPU plain products do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.cache import KVCache, additive_mask
from decoders.models.nets.parts import HeadNorm
from decoders.models.nets.shape import TransformerConfig


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


class Attention(nn.Module):
    """H heads of queries, of keys and of values in one matrix."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = cfg.heads, cfg.head_dim
        self.wqkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.wo = nn.Linear(cfg.width, cfg.width, bias=False)
        self.qk_norm = HeadNorm(2 * cfg.heads, cfg.head_dim) if cfg.qk_norm else None

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        bias: Tensor,
        layer: int,
        cache: KVCache | None,
        index: Tensor | None,
    ) -> Tensor:
        rows, length, width = x.shape
        qkv = self.wqkv(x).view(rows, length, -1, self.head_dim)  # [R, T, 3 H, d]
        qkv = qkv.transpose(1, 2)
        turning, v = qkv.split((2 * self.heads, self.heads), 1)
        if self.qk_norm is not None:
            turning = self.qk_norm(turning)
        query, k = rotate(turning, rope).split(self.heads, 1)
        if cache is not None and index is not None:
            cache.write(layer, index, torch.stack([k, v]))  # [R, H, T, d] each
            k, v = cache.read(layer)  # [R, H, S, d]
        out = attend(query, k, v, bias)  # [R, H, T, d]
        return self.wo(out.transpose(1, 2).reshape(rows, length, width))


def swiglu(both: Tensor) -> Tensor:
    """[..., 2 F], gate and then up -> silu(gate) * up [..., F]."""
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x), w1 and w3 stacked in one matrix."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.w13 = nn.Linear(cfg.width, 2 * cfg.ffn, bias=False)
        self.w2 = nn.Linear(cfg.ffn, cfg.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(swiglu(self.w13(x)))


class Layer(nn.Module):
    """A transformer layer. ``input_norm=False`` is the EAGLE drafter's layer (METHODS 6). bias: of
    `attention_bias`."""

    def __init__(self, cfg: TransformerConfig, input_norm: bool = True) -> None:
        super().__init__()
        self.attention = Attention(cfg)
        self.feed_forward = FeedForward(cfg)
        self.attention_norm: nn.Module = (
            nn.RMSNorm(cfg.width, cfg.norm_eps) if input_norm else nn.Identity()
        )
        self.ffn_norm = nn.RMSNorm(cfg.width, cfg.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        bias: Tensor,
        layer: int = 0,
        cache: KVCache | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, bias, layer, cache, index)
        return x + self.feed_forward(self.ffn_norm(x))
