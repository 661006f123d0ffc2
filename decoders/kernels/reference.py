"""Tree attention in plain tensor code: what the kernel of `tree_attention` must compute.

Rotation of queries and keys (interleaved pairs; over the grid in 2-D or along the line, as the
table says), append of keys and values to the cache, softmax(q k^T / sqrt(d) + mask) v over all
slots. Sums in float32 whatever the model's dtype, so that every implementation can be compared
with it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_and_append(
    qkv: Tensor, rope: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """qkv [R, T, 3, H, d], rope [R, T, d / 2] complex64 (compiled: float32 [R, T, d / 2, 2]), slots
    [R, T] int64 -> query [R, H, T, d].

    keys, values [R, H, S, d] are written in place at `slots`. Rotation is float32, the result has
    the dtype of qkv.
    """
    both = qkv[:, :, :2].float().unflatten(-1, (-1, 2))  # [R, T, 2, H, d / 2, 2]
    turn = rope[:, :, None, None]  # [R, T, 1, 1, d / 2], or with a last dim of 2
    if rope.is_complex():
        turned = torch.view_as_real(torch.view_as_complex(both.contiguous()) * turn)
    else:
        (re, im), (cos, sin) = both.unbind(-1), turn.unbind(-1)
        turned = torch.stack([re * cos - im * sin, re * sin + im * cos], -1)
    turned = turned.flatten(-2).to(qkv.dtype)  # [R, T, 2, H, d]
    query, key = turned.transpose(1, 3).unbind(2)  # [R, H, T, d] each
    index = slots[:, None, :, None].expand_as(key)  # [R, H, T, d]
    keys.scatter_(2, index, key)
    values.scatter_(2, index, qkv[:, :, 2].transpose(1, 2))
    return query


def tree_attention(
    qkv: Tensor, rope: Tensor, mask: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """T queries a row against the cache -> [R, T, H, d] in the dtype of qkv.

    qkv [R, T, 3, H, d]; rope [R, T, d / 2] complex64, the table's rows at the queries' places;
    mask [R, T, S] bool, True where a query may look (its own slot included, so that no query looks
    nowhere); slots [R, T] int64, different within a row; keys, values [R, H, S, d], written at
    `slots`.
    """
    query = rotate_and_append(qkv, rope, slots, keys, values).float()
    scores = query @ keys.float().transpose(-1, -2) * query.shape[-1] ** -0.5  # [R, H, T, S]
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
    return (weights @ values.float()).transpose(1, 2).to(qkv.dtype)  # [R, T, H, d]
