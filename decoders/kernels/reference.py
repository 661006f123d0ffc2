"""Tree attention in plain tensor code: what the kernel of `tree_attention` must compute.

Rotation of queries and keys (interleaved pairs; over the grid in 2-D or along the line, as the
table says), append of keys and values to the cache, softmax(q k^T / sqrt(d) + mask) v over all
slots. Sums in float32 whatever the model's dtype, so that every implementation can be compared
with it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def additive(mask: Tensor, dtype: torch.dtype, group: int = 1) -> Tensor:
    """[R, T, S] bool -> [R, 1, G T, S] of 0 and -inf, made once a forward for all layers; G: query
    heads of a group, whose queries stand below each other."""
    empty = torch.zeros((), dtype=dtype, device=mask.device)
    bias = torch.where(mask, empty, float("-inf"))[:, None]  # [R, 1, T, S]
    return bias.expand(-1, group, -1, -1).reshape(len(mask), 1, -1, mask.shape[-1])


def attended(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, fused: bool) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v: query [R, K, G T, d], keys, values [R, K, S, d], bias as
    of `additive` -> [R, K, G T, d]. fused: by PyTorch's own operator, else plain products."""
    if fused:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
    scores = torch.add(bias, query @ keys.transpose(-1, -2), alpha=query.shape[-1] ** -0.5)
    return scores.softmax(-1) @ values


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary embedding: x [..., d], neighbouring entries as complex numbers, times rope complex64
    [..., d / 2] (compiled: or float32 [..., d / 2, 2], as Inductor writes no complex kernels); in
    float32 inside, the dtype of x outside."""
    pairs = x.float().unflatten(-1, (-1, 2))  # [..., d / 2, 2]
    if rope.is_complex() and not torch.compiler.is_compiling():
        turned = torch.view_as_real(torch.view_as_complex(pairs) * rope)
        return turned.flatten(-2).to(x.dtype)
    cos, sin = (torch.view_as_real(rope) if rope.is_complex() else rope).unbind(-1)
    re, im = pairs.unbind(-1)
    turned = torch.stack([re * cos - im * sin, re * sin + im * cos], -1)
    return turned.flatten(-2).to(x.dtype)


def rotate_and_append(
    qkv: Tensor, rope: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """qkv [R, T, H + 2 K, d]: query heads, key heads, value heads; rope [R, T, d / 2] complex64
    (compiled: float32 [R, T, d / 2, 2]), slots [R, T] int64 -> query [R, H, T, d].

    keys, values [R, K, S, d] are written in place at `slots`.
    """
    shared = keys.shape[1]  # K
    turning, value = qkv.split((qkv.shape[2] - shared, shared), 2)
    turned = rotate(turning, rope[:, :, None]).transpose(1, 2)  # [R, H + K, T, d]
    query, key = turned.split((turned.shape[1] - shared, shared), 1)
    index = slots[:, None, :, None].expand_as(key)  # [R, K, T, d]
    keys.scatter_(2, index, key)
    values.scatter_(2, index, value.transpose(1, 2))
    return query


def tree_attention(
    qkv: Tensor, rope: Tensor, mask: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """T queries a row against the cache -> [R, T, H, d] in the dtype of qkv.

    qkv [R, T, H + 2 K, d]; rope [R, T, d / 2] complex64, the table's rows at the queries' places;
    mask [R, T, S] bool, True where a query may look (its own slot included, so that no query looks
    nowhere); slots [R, T] int64, different within a row; keys, values [R, K, S, d], written at
    `slots`. Query head h reads head h // (H / K) of them (2305.13245).
    """
    query = rotate_and_append(qkv, rope, slots, keys, values).float()
    group = query.shape[1] // keys.shape[1]
    k, v = (each.float().repeat_interleave(group, 1) for each in (keys, values))  # [R, H, S, d]
    scores = query @ k.transpose(-1, -2) * query.shape[-1] ** -0.5  # [R, H, T, S]
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).to(qkv.dtype)  # [R, T, H, d]
