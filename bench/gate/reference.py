"""Independent answers for comparison: teacher-forced laws through the training forward (no cache,
no tree), and relaxation to neighbours written a second time in float64."""

from __future__ import annotations

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

    def __init__(self, codebook: Tensor, k: int, delta: float | None, lam: float | None) -> None:
        gaps = codebook.double()[:, None] - codebook.double()
        distance = gaps.pow(2).sum(-1).fill_diagonal_(-1.0)  # x itself comes first
        self.near = distance.argsort(dim=-1, stable=True)[:, 1 : k + 1]  # [V, k]
        self.delta, self.lam = delta, lam

    @staticmethod
    def of(rule: Any, model: ImageModel) -> ReferenceRule | None:
        """For a rule with k and either delta or lam; None for others."""
        k, delta, lam = (getattr(rule, name, None) for name in ("k", "delta", "lam"))
        if not isinstance(k, int) or (delta is None) == (lam is None):
            return None
        metric, book = getattr(rule, "metric", "tokenizer"), model.codebook
        if metric == "raw":
            book = getattr(model.tokenizer, "raw_codebook", book)
        return ReferenceRule(book, k, delta, lam)

    def at(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """p [n, V] float64, x [n] -> the TV shift of accepting each x, its bound, and whether the
        bound is so near that rounding in float32 may admit one neighbour more or less, [n]."""
        p_x = p.gather(1, x[:, None])  # [n, 1]
        more = 0.0 if self.lam is None else self.lam - 1.0
        bound = more * p_x if self.delta is None else torch.full_like(p_x, self.delta)
        mass = p.gather(1, self.near[x]).cumsum(1)  # [n, k]
        tv_shift = torch.where(mass <= bound, mass, 0.0).amax(1)
        return tv_shift, bound[:, 0], ((mass - bound).abs() < EDGE).any(1)
