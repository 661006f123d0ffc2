"""Processed sampling: what every draw of a code goes through, of target and drafter alike."""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import Sampling
from decoders.distribution import drop_sibling, probabilities
from decoders.kernels.sampling import fits, sampled
from decoders.noise import BELOW_ONE, inverted


def processed(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Guided logits [B, n, V] float32, u [B, n or 1, K] -> p [B, n, V] and K draws from it without
    replacement [B, n, K]. One launch on a GPU with Triton. Not for temperature 0."""
    if fits(logits.device.type, logits.shape[-1]):
        p, codes = sampled(logits, u, sampling.temperature, sampling.top_k, sampling.top_p)
        return p, codes
    p = probabilities(logits, sampling)
    return p, draw_distinct(p, u)


def law_of(logits: Tensor, sampling: Sampling) -> Tensor:
    """`decoders.distribution.probabilities` of logits [B, n, V], as `processed` computes them."""
    if sampling.greedy or not fits(logits.device.type, logits.shape[-1]):
        return probabilities(logits, sampling)
    return processed(logits, sampling, logits.new_empty(len(logits), 1, 0))[0]


def draw_distinct(q: Tensor, u: Tensor) -> Tensor:
    """Draws without replacement: q [B, n, V], u [B, n or 1, K] -> [B, n, K] int64."""
    below_one, drawn = u.clamp_max(BELOW_ONE), []
    for j in range(u.shape[-1]):
        x = inverted(q, below_one[..., j : j + 1])  # [B, n, 1]
        drawn.append(x)
        if j + 1 < u.shape[-1]:
            q = drop_sibling(q, x.squeeze(-1))
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn, -1)
