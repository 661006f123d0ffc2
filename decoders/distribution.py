"""From logits to the distributions p and q: guidance, temperature, top-k, then top-p, in float32.

One function for target and drafter, so that both are processed alike (METHODS 2). Half precision
would create ties that change which codes top-k keeps; everything here is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decoders.api import Sampling, Target
from decoders.noise import BELOW_ONE, inverse_cdf
from decoders.repeated import compiled_once

IMPOSSIBLE = -1e30  # a logit of probability zero; finite, so that infinity still means an error


def guided(logits: Tensor, cfg: float) -> Tensor:
    """Classifier-free guidance: [R, T, V] any dtype, rows [conditional; unconditional] -> [B, T, V]
    float32; float64 stays as it is.

    uncond + cfg (cond - uncond); without guidance R = B and this is a cast.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if cfg == 1:
        return logits
    cond, uncond = logits.chunk(2, 0)
    return torch.lerp(uncond, cond, cfg)


class DraftHead:
    """A drafter's own head: it has `logits` and `barred` as a target has."""

    barred: Tensor | None
    logits: Callable[[Tensor], Tensor]  # [..., D] -> [..., V]


def code_logits(head: Target | DraftHead, hidden: Tensor, cfg: float, positions: Tensor) -> Tensor:
    """Guided logits of the codes at `positions`: hidden [R, T, D], positions [B, T] -> [B, T, V]
    float32.

    Where the model has structural codes (Lumina's row ends) they stand at their positions with
    certainty and nowhere else: `Target.barred`.
    """
    logits, barred = guided(head.logits(hidden), cfg), head.barred
    if barred is None:
        return logits
    return logits.masked_fill(barred[positions % len(barred)], IMPOSSIBLE)


def take(values: Tensor, index: Tensor) -> Tensor:
    """values [R, n, C], index [R, w] -> [R, w, C]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


@compiled_once
def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Guided logits [..., V] float32 -> probabilities [..., V] float32.

    At temperature 0 this is the raw softmax, unfiltered: greedy rules need the full distribution.
    """
    if sampling.greedy:
        return logits.softmax(-1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    size = logits.shape[-1]
    if 0 < sampling.top_k < size:
        logits = logits.masked_fill(logits < kth_largest(logits, sampling.top_k), float("-inf"))
    p = logits.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = p.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered  # mass ahead of each code
        drop = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        p = p.masked_fill(drop, 0.0)
        p = p / p.sum(-1, keepdim=True)
    return p


# ---- the largest --------------------------------------------------------------------------------
# PyTorch's topk is a kernel that nothing is fused with, and a slow one for a few rows. What is here
# is made of sums and maxima over a row, which the compiler writes as loops of one kernel, together
# with what comes before and after. Without a compiler it would be a hundred kernels.

ROOM = 20  # bits of a count in a sum of several
WIDTH = 2**ROOM
MOST_LOOPS = 16  # maxima that are found one after the other


def written_as_loops(values: Tensor) -> bool:
    """Whether values are on a GPU, in a step that is compiled."""
    return values.device.type == "cuda" and torch.compiler.is_compiling()


def kth_largest(values: Tensor, k: int) -> Tensor:
    """values [..., V] float32 -> the k-th largest of each row, [..., 1]."""
    if written_as_loops(values):
        return kth_by_bits(values, k)
    return values.topk(k, -1, sorted=False).values.amin(-1, keepdim=True)


def kth_by_bits(values: Tensor, k: int) -> Tensor:
    """`kth_largest` by radix selection: two bits of the number at a time, from the first ones on.
    What is counted is how many of the row are no smaller than with 1, 2 or 3 in these bits, all
    three in one sum. V is less than 2**20."""
    order = ordered(values.view(torch.int32))  # [..., V]
    kth = torch.full_like(order[..., :1], -(2**31))  # [..., 1]
    for shift in range(30, -1, -2):
        step = 1 << shift
        one = kth + step
        two = one + step
        three = two + step
        counts = (order >= one).long() + (order >= two) * WIDTH + (order >= three) * WIDTH**2
        total = counts.sum(-1, keepdim=True)  # [..., 1]
        for count in (total & WIDTH - 1, total >> ROOM & WIDTH - 1, total >> 2 * ROOM):
            kth = kth + (count >= k).int() * step
    return ordered(kth).view(torch.float32)


def ordered(bits: Tensor) -> Tensor:
    """The bits of float32 numbers as int32 that are ordered as the numbers are; its own inverse."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values [..., V] of each row in descending order, and their indices, [..., k]
    both. Values are finite."""
    if written_as_loops(values) and k <= MOST_LOOPS:
        return largest_by_maxima(values, k)
    values, indices = values.topk(k, -1)
    return values, indices


def largest_by_maxima(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`largest`, one after the other; of equal ones the first comes first."""
    index = torch.arange(values.shape[-1], device=values.device)
    left = values
    found: list[tuple[Tensor, Tensor]] = []  # [..., 1] each
    for _ in range(k):
        at = left.argmax(-1, keepdim=True)
        value = values.gather(-1, at)
        found.append((value, at))
        later = (values < value) | ((values == value) & (index > at))
        left = torch.where(later, values, float("-inf"))
    every, indices = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
    return every, indices


def normalised(mass: Tensor, otherwise: Tensor) -> Tensor:
    """mass [..., V] >= 0 over its sum; `otherwise` where nothing is left (an unreachable branch of
    an exact rule: everything was accepted)."""
    total = mass.sum(-1, keepdim=True)
    return torch.where(total > 0, mass / total.clamp_min(1e-30), otherwise)


def setting(value: float, model: Any = None) -> Tensor:
    """A rule's number as a 0-dim tensor on the model's device (the CPU without one): compiled code
    reads it, so that rules that differ in it alone are compiled once. float64, which leaves the
    dtype of what it meets as it is."""
    device = None if model is None else model.device
    return torch.tensor(value, dtype=torch.float64, device=device)


def pick(p: Tensor, x: Tensor) -> Tensor:
    """p [..., V], x [...] -> p(x) [...]; leading dims of p broadcast over those of x."""
    return p.expand(*x.shape, -1).gather(-1, x.unsqueeze(-1)).squeeze(-1)


def ratio(mass: Tensor, q: Tensor | None, x: Tensor) -> Tensor:
    """min(1, mass / q(x)); q None is q(x) = 1. A draft the drafter never makes is never
    accepted."""
    if q is None:
        return mass.clamp_max(1.0)
    at = pick(q, x)
    return torch.where(at > 0, mass / at.clamp_min(1e-30), 0.0).clamp_max(1.0)


def without(p: Tensor, x: Tensor) -> Tensor:
    """p with p(x) = 0, not renormalised."""
    return p.scatter(-1, x.unsqueeze(-1), 0.0)


def drop_sibling(q: Tensor, x: Tensor) -> Tensor:
    """The drafter's distribution once x is drawn: without it, renormalised (SpecInfer, METHODS
    3)."""
    return normalised(without(q, x), q.new_zeros(()))


def draw_distinct(q: Tensor, u: Tensor) -> Tensor:
    """Draws without replacement: q [B, n, V], u [B, n or 1, K] -> [B, n, K] int64."""
    below_one, drawn = u.clamp_max(BELOW_ONE), []
    for j in range(u.shape[-1] - 1):
        x, q = draw_one(q, below_one[..., j : j + 1])
        drawn.append(x)
    last = inverse_cdf(q, below_one[..., -1:])
    return torch.cat([*drawn, last], -1) if drawn else last


@compiled_once
def draw_one(q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """q [B, n, V], u [B, n or 1, 1] -> a draw [B, n, 1] int64, and the distribution without it."""
    x = inverse_cdf(q, u)
    return x, drop_sibling(q, x.squeeze(-1))
