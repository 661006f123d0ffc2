"""Independent answers that a decoder's are compared with: teacher-forced distributions through the
training forward (no cache, no tree), filters and relaxation written a second time in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.judge.gate.small import same_prompt
from decoders.api import ImageModel, Sampling, TextFeatures

ENTRY = 2e-5  # largest difference of a probability between cached and teacher-forced float32
EDGE = 2e-6  # cumulative masses this near to the bound may fall on either side in float32


def teacher_logits(model: ImageModel, text: TextFeatures, codes: Tensor, cfg: float) -> Tensor:
    """Guided logits [B, L, V] that predict every code from the ones before it, float32 or more."""
    target: Any = model.target  # a small model's
    drop = torch.zeros(len(codes), dtype=torch.bool)
    with torch.inference_mode():
        cond: Tensor = target.output(target(text, codes, drop))
        cond = cond.to(torch.promote_types(cond.dtype, torch.float32))
        if cfg == 1:
            return cond
        uncond: Tensor = target.output(target(text, codes, ~drop)).to(cond)
    return uncond + cfg * (cond - uncond)


def processed(logits: Tensor, sampling: Sampling) -> Tensor:
    """[..., V] float32 -> float64 probabilities after temperature, top-k, top-p (METHODS 2, 6)."""
    z = logits.double() / (sampling.temperature or 1.0)
    order = z.argsort(dim=-1, descending=True, stable=True)
    ordered = z.gather(-1, order)
    if sampling.top_k and not sampling.greedy:
        ordered[..., sampling.top_k :] = -torch.inf
    p = ordered.softmax(-1)
    if sampling.top_p < 1 and not sampling.greedy:
        ahead = torch.cat([torch.zeros_like(p[..., :1]), p.cumsum(-1)[..., :-1]], -1)
        p = torch.where(ahead < sampling.top_p, p, 0.0)
        p = p / p.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, order, p)


def shortfall(logits: Tensor, codes: Tensor) -> float:
    """How far the logit of the worst of codes [...] lies below the largest of its logits [..., V];
    NaN for NaN."""
    return float((logits.amax(-1) - logits.gather(-1, codes[..., None])[..., 0]).max())


def equal_images(score: Tensor, codes: Tensor, wanted: Tensor, tie: float) -> int:
    """How many images codes [B, L] are the wanted ones, which score [B, L, V] the most. A first
    difference at a tie counts as equal, since two float32 forwards need not agree on it."""
    row, differ = torch.arange(len(codes)), codes != wanted
    first = differ.int().argmax(-1)  # [B]
    both = torch.stack([codes[row, first], wanted[row, first]], -1)  # [B, 2]
    gap = score[row, first].gather(-1, both).diff(dim=-1)[:, 0].abs()
    return int((~differ.any(-1) | (gap < tie)).sum())


@dataclass(frozen=True)
class ImageLaw:
    """The AR law of all V**L images of one caption, in base-V order (first code leading)."""

    probability: Tensor  # [V**L] float64
    vocab: int
    length: int

    def of_prefix(self, size: int) -> Tensor:
        """Law of the first `size` codes, [V**size]."""
        return self.probability.view(self.vocab**size, -1).sum(-1)

    def index(self, codes: Tensor, size: int) -> Tensor:
        """codes [B, L] -> number of their prefix [B]."""
        weights = self.vocab ** torch.arange(size - 1, -1, -1)
        return (codes[:, :size] * weights).sum(-1)


def image_law(
    model: ImageModel,
    text: TextFeatures,
    sampling: Sampling,
    prefix: Tensor | None = None,
) -> ImageLaw:
    """By enumeration: text holds one caption; V**L must be small. prefix [m]: the first codes,
    which are given, so that the law is of the L - m others."""
    vocab = model.target.vocab_size
    prefix = torch.zeros(0, dtype=torch.long) if prefix is None else prefix
    length = model.target.length - len(prefix)
    ends = torch.cartesian_prod(*[torch.arange(vocab)] * length).view(-1, length)  # [V**n, n]
    images = torch.cat([prefix.expand(len(ends), -1), ends], 1)  # [V**n, L]
    rows = same_prompt(text, len(images))
    p = processed(teacher_logits(model, rows, images, sampling.cfg)[:, len(prefix) :], sampling)
    return ImageLaw(p.gather(-1, ends[..., None])[..., 0].prod(-1), vocab, length)


@dataclass(frozen=True)
class Relaxed:
    """p_A at one draft, by the definition. near_edge: float32 may decide the prefix otherwise."""

    moved: float  # sum of p over A(x) = TV(p, p_A)
    raised: float  # p_A(x)
    bound: float
    near_edge: bool


class ReferenceRule:
    """A relaxation by its definition: neighbours by full sort of exact distances, x left out, mass
    added one by one (METHODS 2 and 4)."""

    def __init__(self, codebook: Tensor, k: int, delta: float | None, lam: float | None) -> None:
        book = codebook.double().numpy()
        self.near = []
        for x in range(len(book)):
            distance = ((book - book[x]) ** 2).sum(-1)
            order = [int(y) for y in np.argsort(distance, kind="stable") if y != x]
            self.near.append(order[:k])
        self.delta, self.lam = delta, lam

    @staticmethod
    def of(rule: Any, model: ImageModel) -> ReferenceRule | None:
        """For a rule that says k and delta or lam; None for one of another kind."""
        k, delta, lam = (getattr(rule, name, None) for name in ("k", "delta", "lam"))
        if not isinstance(k, int) or (delta is None) == (lam is None):
            return None
        metric = getattr(rule, "metric", "tokenizer")
        book = model.codebook
        if metric == "raw":
            book = getattr(model.tokenizer, "raw_codebook", book)
        elif metric == "cosine":
            book = torch.nn.functional.normalize(book, dim=-1)
        return ReferenceRule(book, k, delta, lam)

    def at(self, p: np.ndarray, x: int) -> Relaxed:
        """p [V] float64."""
        bound = self.delta if self.delta is not None else ((self.lam or 1.0) - 1.0) * float(p[x])
        mass, near_edge = 0.0, False
        for y in self.near[x]:
            near_edge |= abs(mass + p[y] - bound) < EDGE
            if mass + p[y] > bound:
                break
            mass += float(p[y])
        return Relaxed(mass, float(p[x]) + mass, bound, near_edge)
