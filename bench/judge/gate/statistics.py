"""Are sampled images from a given law? Chi-square tests with known false-alarm rates: Pearson's, of
codes that can be enumerated, and one of sums over many laws, whose covariance is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2
from torch import Tensor

from bench.judge.gate.reference import ImageLaw

LEAST_EXPECTED = 5.0  # cells expected less often are pooled
LEAST_SUM = 20.0  # codes or groups expected less often are pooled
GROUPS = 64  # of codes, and of ranks, at most
ALARM = 1e-4  # p-value, already multiplied by the number of tests, below which noise is drawn anew
CERTAIN = 1e-9  # a p-value below this needs no second look
MISSED = 0.01  # chance of an error that is called found
Sums = tuple[Tensor, Tensor, Tensor]  # what was seen too often, expected, covariance


def tested(
    sample: Callable[[bool], Any], pvalues: Callable[[Any], Sequence[float]]
) -> tuple[Any, float]:
    """Samples and tests; once more on fresh noise after an alarm that chance might have raised, so
    that chance alone raises one in fewer than a million. The p-value is the least one times the
    number of tests (Bonferroni)."""
    codes: Any = None
    adjusted = 0.0
    for first in (True, False):
        codes = sample(first)
        found = [value if math.isfinite(value) else 0.0 for value in pvalues(codes)]
        adjusted = min(1.0, min(found) * len(found))
        if not CERTAIN <= adjusted < ALARM:
            break
    return codes, adjusted


def alarm(adjusted: float, words: str) -> str:
    """The fault that a p-value shows; "" for none."""
    return "" if adjusted >= ALARM else f"{words} (p {adjusted:.1g})"


def resolution(images: int, cells: int, tests: int) -> float:
    """The least TV that Pearson's test of `cells` cells finds in so many images, MISSED aside, when
    it is one of `tests`: a law that is away by t has a chi-square of at least 4 t^2 per image."""
    freedom = max(1, cells - 1)
    limit = chi2.isf(ALARM / tests, freedom)
    needed = brentq(lambda x: ncx2.cdf(limit, freedom, x) - MISSED, 1e-6, 10 * limit + 100)
    return float(0.5 * math.sqrt(needed / images))


def prefix_pvalues(law: ImageLaw, codes: Tensor) -> list[float]:
    """codes [n, L] of enumerable images -> p-value of the first 1, 2, ..., L codes against the law.

    Short prefixes have few cells, hence the power to see a small bias; the whole image sees
    dependence.
    """
    sizes = range(1, law.length + 1)
    return [pearson(law.of_prefix(size), law.index(codes, size)) for size in sizes]


def excess_tv(law: ImageLaw, codes: Tensor) -> float:
    """Largest over prefixes of the TV between observed shares and the law, less what n samples of
    the law itself would show on average; 0 if that is negative."""
    worst, count = 0.0, len(codes)
    for size in range(1, law.length + 1):
        p = law.of_prefix(size)
        share = torch.bincount(law.index(codes, size), minlength=len(p)).double() / count
        noise = 0.5 * float((2 * p * (1 - p) / (torch.pi * count)).sqrt().sum())
        worst = max(worst, 0.5 * float((share - p).abs().sum()) - noise)
    return worst


def pearson(probability: Tensor, cells: Tensor) -> float:
    """Pearson's test with rare cells pooled; 0 if an impossible cell was seen."""
    observed = torch.bincount(cells, minlength=len(probability)).double()
    if bool((observed[probability == 0] > 0).any()):
        return 0.0
    expected, order = (probability * len(cells)).sort(descending=True)
    observed = observed[order]
    kept = max(1, int((expected >= LEAST_EXPECTED).sum()))
    pooled = float(expected[kept:].sum())
    if 0 < pooled < LEAST_EXPECTED and kept > 1:
        kept -= 1
    pair = [torch.cat([x[:kept], x[kept:].sum()[None]]) for x in (observed, expected)]
    seen, wanted = (x[pair[1] > 0] for x in pair)
    if len(wanted) < 2:
        return 1.0
    return float(chi2.sf(float(((seen - wanted) ** 2 / wanted).sum()), len(wanted) - 1))


def draw_pvalues(parts: Iterable[tuple[Tensor, Tensor]], possible: bool = True) -> list[float]:
    """laws [m, V] float64 and codes [m], part by part, each code drawn from its law whatever went
    before -> p-values of codes, and of their ranks in their law (draws that are too sharp or too
    flat): onehot(code) - p has mean 0 and covariance diag(p) - p p^T, so sums of it add up to a
    chi-square. Of many codes groups are counted. possible: a code of probability zero is an error,
    as no rounding explains it."""
    sums: list[list[Sums]] = []
    for laws, codes in parts:
        if not bool(torch.isfinite(laws).all()):
            return [0.0]
        if possible and not bool((laws.gather(1, codes[:, None]) > 0).all()):
            return [0.0]
        ordered, order = laws.sort(dim=1, descending=True, stable=True)
        ranks = (order == codes[:, None]).int().argmax(1)
        by_code, by_rank = _groups(laws.shape[1])
        sums.append([_sums(laws, codes, by_code), _sums(ordered, ranks, by_rank)])
    if not sums:
        return [1.0]
    return [
        _sums_pvalue(*(torch.stack(part).sum(0) for part in zip(*each, strict=True)))
        for each in zip(*sums, strict=True)
    ]


def _groups(vocab: int) -> tuple[Tensor, Tensor]:
    """The group of a code, and that of a rank [V]: the first ranks alone, the others in parts of
    one size."""
    each, head = torch.arange(vocab), GROUPS // 2
    if vocab <= GROUPS:
        return each, each
    rest = head + (each - head) * head // (vocab - head)
    return each % GROUPS, torch.where(each < head, each, rest)


def _sums(p: Tensor, codes: Tensor, group: Tensor) -> Sums:
    """p [m, V], codes [m] drawn from it, group [V] -> how often each group was seen less how often
    expected [G], the latter [G], and the covariance [G, G]."""
    size = min(len(group), GROUPS)
    shares = p.new_zeros(len(p), size).index_add_(1, group, p)
    expected = shares.sum(0)
    seen = torch.bincount(group[codes], minlength=size).to(p.dtype)
    return seen - expected, expected, torch.diag(expected) - shares.T @ shares


def _sums_pvalue(gap: Tensor, expected: Tensor, covariance: Tensor) -> float:
    """Groups that are expected rarely are one more cell, which is left out."""
    kept = (expected >= LEAST_SUM).nonzero().flatten()
    if float(expected.sum() - expected[kept].sum()) < LEAST_SUM:
        kept = kept[:-1]
    if not len(kept):
        return 1.0
    inverse = torch.linalg.pinv(covariance[kept][:, kept], hermitian=True)
    return float(chi2.sf(float(gap[kept] @ inverse @ gap[kept]), len(kept)))
