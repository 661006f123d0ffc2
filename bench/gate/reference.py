"""Independent answers for comparison: teacher-forced laws through the training forward (no cache,
no tree), and relaxation to neighbours written a second time in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.distribution import code_logits, probabilities
from decoders.models.random_weights import same_prompt

TOGETHER = 2**20  # codes squared of the images of one forward, at most
EDGE = 2e-6  # cumulative masses this near to the bound may fall on either side in float32


@torch.inference_mode()
def teacher_logits(model: ImageModel, text: TextFeatures, codes: Tensor, cfg: float) -> Tensor:
    """Guided logits [B, L, V] that predict every code from the ones before it, float32 or more. The
    target is a transformer, or a table."""
    target: Any = model.target
    rows, drop = text.paired(Sampling(cfg=cfg).guidance_rows)
    hidden = target(rows, codes.repeat(len(drop) // len(codes), 1), drop)
    positions = torch.arange(codes.shape[1], device=codes.device).expand_as(codes)
    return code_logits(target, hidden, cfg, positions)


def teacher_probs(
    model: ImageModel, text: TextFeatures, codes: Tensor, sampling: Sampling
) -> Tensor:
    """AR's law of every code given the codes before it, [B, L, V] float64."""
    return probabilities(teacher_logits(model, text, codes, sampling.cfg).double(), sampling)


def ar_probabilities(
    model: ImageModel, text: TextFeatures, codes: Tensor, sampling: Sampling
) -> Tensor:
    """AR's probability of each code of images [B, L] of the first caption, [B, L] float64."""
    parts = []
    for some in codes.split(max(1, TOGETHER // codes.shape[1] ** 2)):
        laws = teacher_probs(model, same_prompt(text, len(some)), some, sampling)
        parts.append(laws.gather(-1, some[..., None])[..., 0])
    return torch.cat(parts)


def reference_rule(
    rule: Any, model: ImageModel
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None:
    """A relaxation to neighbours by its definition (METHODS 2 and 4), for a rule with k and either
    delta or lam; None for others. All codes are sorted by their exact distances, x left out; the
    first of them whose mass together is within the bound move theirs to x.

    -> a function of p [n, V] float64 and x [n]: the TV shift of accepting each x, its bound, and
    whether the bound is so near that rounding in float32 may admit one neighbour more or less, [n].
    """
    options: list[Any] = [getattr(rule, name, None) for name in ("k", "delta", "lam")]
    k, delta, lam = options
    metric, book = getattr(rule, "metric", "l2"), model.codebook.double()
    # At random any order of the other codes is right.
    if not isinstance(k, int) or (delta is None) == (lam is None) or metric == "random":
        return None
    if metric == "raw":
        book = getattr(model.tokenizer, "raw_codebook", book).double()
    distance = (book[:, None] - book).pow(2).sum(-1)  # [V, V]
    if metric == "cosine":
        distance = 1 - torch.cosine_similarity(book[:, None], book, dim=-1)
    distance.fill_diagonal_(-1.0)  # x itself comes first
    near = distance.argsort(dim=-1, stable=True)[:, 1 : k + 1]  # [V, k]

    def at(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p_x = p.gather(1, x[:, None])  # [n, 1]
        bound = torch.full_like(p_x, delta) if lam is None else (lam - 1.0) * p_x
        size = mass = p.gather(1, near[x]).cumsum(1)  # [n, k]
        declared = bound
        if getattr(rule, "distance", "tvd") == "jsd":  # of the two laws where they differ
            after, both = p_x + mass, p_x + mass / 2
            lost = mass * math.log(2)  # codes that lost all of theirs
            size = (lost + torch.xlogy(p_x, p_x / both) + torch.xlogy(after, after / both)) / 2
            declared = (2 * bound).sqrt()
        tv_shift = torch.where(size <= bound, mass, 0.0).amax(1)
        return tv_shift, declared[:, 0], ((size - bound).abs() < EDGE).any(1)

    return at
