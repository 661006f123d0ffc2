"""Independent answers for comparison: teacher-forced laws through the training forward (no cache,
no tree), and relaxation to neighbours written a second time in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.distribution import IMPOSSIBLE, probabilities
from decoders.models.random_weights import same_prompt

TOGETHER = 2**20  # codes squared of the images of one forward, at most
EDGE = 2e-6  # cumulative masses this near to the bound may fall on either side in float32


def teacher_logits(model: ImageModel, text: TextFeatures, codes: Tensor, cfg: float) -> Tensor:
    """Guided logits [B, L, V] that predict every code from the ones before it, float32 or more. The
    target is a transformer, or a table."""
    target: Any = model.target
    drop = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
    with torch.inference_mode():
        logits: Tensor = target.output(target(text, codes, drop))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if cfg != 1:
            uncond = target.output(target(text, codes, ~drop)).to(logits)
            logits = uncond + cfg * (logits - uncond)
    if target.barred is None:
        return logits
    positions = torch.arange(codes.shape[1], device=codes.device) % len(target.barred)
    return logits.masked_fill(target.barred[positions], IMPOSSIBLE)


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


class ReferenceRule:
    """A relaxation to neighbours by its definition (METHODS 2 and 4): all codes sorted by their
    exact distances, x left out; the first of them whose mass together is within the bound."""

    def __init__(
        self, distance: Tensor, k: int, delta: float | None, lam: float | None, jsd: bool = False
    ) -> None:
        """distance [V, V] of codes; jsd: whether delta bounds the Jensen-Shannon divergence."""
        distance = distance.clone().fill_diagonal_(-1.0)  # x itself comes first
        self.near = distance.argsort(dim=-1, stable=True)[:, 1 : k + 1]  # [V, k]
        self.delta, self.lam, self.jsd = delta, lam, jsd

    @staticmethod
    def of(rule: Any, model: ImageModel) -> ReferenceRule | None:
        """For a rule with k and either delta or lam; None for others."""
        k, delta, lam = (getattr(rule, name, None) for name in ("k", "delta", "lam"))
        if not isinstance(k, int) or (delta is None) == (lam is None):
            return None
        metric, book = getattr(rule, "metric", "l2"), model.codebook.double()
        if metric == "random":
            return None  # any order of the other codes is right
        if metric == "raw":
            book = getattr(model.tokenizer, "raw_codebook", book).double()
        distance = (book[:, None] - book).pow(2).sum(-1)
        if metric == "cosine":
            distance = 1 - torch.cosine_similarity(book[:, None], book, dim=-1)
        jsd = getattr(rule, "distance", "tvd") == "jsd"
        return ReferenceRule(distance, k, delta, lam, jsd)

    def at(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """p [n, V] float64, x [n] -> the TV shift of accepting each x, its bound, and whether the
        bound is so near that rounding in float32 may admit one neighbour more or less, [n]."""
        p_x = p.gather(1, x[:, None])  # [n, 1]
        more = 0.0 if self.lam is None else self.lam - 1.0
        bound = more * p_x if self.delta is None else torch.full_like(p_x, self.delta)
        mass = p.gather(1, self.near[x]).cumsum(1)  # [n, k]
        size = mass
        if self.jsd:  # of the two laws where they differ, by its definition
            after, both = p_x + mass, p_x + mass / 2
            lost = mass * math.log(2)  # codes that lost all of theirs
            size = (lost + torch.xlogy(p_x, p_x / both) + torch.xlogy(after, after / both)) / 2
        tv_shift = torch.where(size <= bound, mass, 0.0).amax(1)
        declared = (2 * bound).sqrt() if self.jsd else bound
        return tv_shift, declared[:, 0], ((size - bound).abs() < EDGE).any(1)
