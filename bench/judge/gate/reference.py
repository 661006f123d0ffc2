"""Independent answers for comparison: teacher-forced distributions through the training forward (no
cache, no tree), and filters and relaxation written a second time in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.judge.gate.small import same_prompt
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.distribution import IMPOSSIBLE

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
    places = torch.arange(codes.shape[1], device=codes.device) % len(target.barred)
    return logits.masked_fill(target.barred[places], IMPOSSIBLE)


def processed(logits: Tensor, sampling: Sampling) -> Tensor:
    """[..., V] float32 -> float64 probabilities after temperature, top-k, top-p (METHODS 2, 6)."""
    z = logits.double() / (sampling.temperature or 1.0)
    if sampling.greedy or (not sampling.top_k and sampling.top_p == 1):
        return z.softmax(-1)
    order = z.argsort(dim=-1, descending=True, stable=True)
    ordered = z.gather(-1, order)
    if sampling.top_k:
        ordered[..., sampling.top_k :] = -torch.inf
    p = ordered.softmax(-1)
    if sampling.top_p < 1:
        ahead = torch.cat([torch.zeros_like(p[..., :1]), p.cumsum(-1)[..., :-1]], -1)
        p = torch.where(ahead < sampling.top_p, p, 0.0)
        p = p / p.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, order, p)


def shortfall(logits: Tensor, codes: Tensor) -> float:
    """How far the logit of the worst of codes [...] lies below the largest of its logits [..., V];
    NaN for NaN."""
    return float((logits.amax(-1) - logits.gather(-1, codes[..., None])[..., 0]).max())


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
    stop: int | None = None,
) -> ImageLaw:
    """Enumerates the images of one caption. prefix [m]: fixed first codes; stop: the place behind
    the last code that is enumerated. The law is of the codes m..stop - 1."""
    vocab, size = model.target.vocab_size, model.target.length
    prefix = torch.zeros(0, dtype=torch.long) if prefix is None else prefix
    stop = size if stop is None else stop
    length = stop - len(prefix)
    ends = torch.cartesian_prod(*[torch.arange(vocab)] * length).view(-1, length)  # [V**n, n]
    images = torch.cat([prefix.expand(len(ends), -1), ends], 1)  # [V**n, stop]
    images = torch.nn.functional.pad(images, (0, size - stop))  # [V**n, L]
    logits = teacher_logits(model, same_prompt(text, len(images)), images, sampling.cfg)
    p = processed(logits[:, len(prefix) : stop], sampling)
    return ImageLaw(p.gather(-1, ends[..., None])[..., 0].prod(-1), vocab, length)


@dataclass(frozen=True)
class Relaxed:
    """p_A at one draft, by the definition. near_edge: in float32 one neighbour more or less may be
    admitted."""

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
        """For a rule with k and either delta or lam; None for others."""
        k, delta, lam = (getattr(rule, name, None) for name in ("k", "delta", "lam"))
        if not isinstance(k, int) or (delta is None) == (lam is None):
            return None
        metric, book = getattr(rule, "metric", "tokenizer"), model.codebook
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
