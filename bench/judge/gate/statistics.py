"""Are sampled images from a given law? Chi-square tests with known false-alarm rates: Pearson's, of
codes that can be enumerated, and one of sums over many laws, whose covariance is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2
from torch import Tensor

from bench.judge.gate.reference import ImageLaw

LEAST_EXPECTED = 5.0  # cells expected less often are pooled
LEAST_SUM = 20.0  # codes or groups expected less often are pooled
BINS, GROUPS = 20, 64
ALARM = 1e-4  # p-value, already multiplied by the number of tests, below which noise is drawn anew
CERTAIN = 1e-9  # a p-value below this needs no second look
MISSED = 0.01  # chance of an error that is called found


def tested(
    sample: Callable[[bool], Tensor], pvalues: Callable[[Tensor], Sequence[float]]
) -> tuple[Tensor, float]:
    """Samples and tests; once more on fresh noise after an alarm that chance might have raised, so
    that chance alone raises one in fewer than a million. The p-value is the least one times the
    number of tests (Bonferroni)."""
    codes, adjusted = Tensor(), 0.0
    for first in (True, False):
        codes = sample(first)
        found = [value if math.isfinite(value) else 0.0 for value in pvalues(codes)]
        adjusted = min(1.0, min(found) * len(found))
        if not CERTAIN <= adjusted < ALARM:
            break
    return codes, adjusted


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
    return [_pearson(law.of_prefix(size), law.index(codes, size)) for size in sizes]


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


def _pearson(probability: Tensor, cells: Tensor) -> float:
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


def draw_pvalues(laws: Tensor, codes: Tensor) -> list[float]:
    """laws [m, V] float64, codes [m], each drawn from its law whatever went before -> p-values of
    codes, and of their ranks in their law (draws that are too sharp or too flat): onehot(code) - p
    has mean 0 and covariance diag(p) - p p^T, so sums of it add up to a chi-square."""
    if not len(codes):
        return [1.0]
    own = laws.gather(1, codes[:, None])
    if not bool((own > 0).all()):
        return [0.0]
    ordered, order = laws.sort(dim=1, descending=True, stable=True)
    ranks = (order == codes[:, None]).int().argmax(1)
    return [_sums_pvalue([_sums(laws, codes)]), _sums_pvalue([_sums(ordered, ranks)])]


def image_pvalues(laws: Iterable[Tensor], codes: Tensor, generator: torch.Generator) -> list[float]:
    """The law [L, V] of an image's codes, one image at a time, and codes [n, L] -> p-values of two
    tests. (1) A code's place in its law, codes in order of probability, is uniform: the mass of
    likelier codes and a random share of the code's own. (2) Groups of codes are as frequent as
    expected."""
    ranks, groups = [], []
    for p, own in zip(laws, codes, strict=True):
        ranks.append(_places(p, own, generator))
        shares = torch.zeros(len(p), min(GROUPS, p.shape[-1]), dtype=p.dtype)  # [L, G]
        shares.index_add_(1, torch.arange(p.shape[-1]) % GROUPS, p)
        groups.append(_sums(shares, own % GROUPS))
    gap, expected, covariance = (torch.stack(part).sum(0) for part in zip(*groups, strict=True))
    places = torch.cat(ranks)
    if not bool(torch.isfinite(places).all()):
        return [0.0]
    uniform = torch.full((BINS,), 1 / BINS, dtype=torch.float64)
    cells = (places * BINS).long().clamp(0, BINS - 1)
    return [_pearson(uniform, cells), _sums_pvalue([(gap, expected, covariance)])]


def _places(p: Tensor, codes: Tensor, generator: torch.Generator) -> Tensor:
    """p [L, V], codes [L] -> [L], uniform where codes are drawn from p."""
    own = p.gather(-1, codes[:, None])  # [L, 1]
    earlier = torch.arange(p.shape[-1]) < codes[:, None]  # among equals, the lower code
    ahead = torch.where((p > own) | ((p == own) & earlier), p, 0.0).sum(-1)
    return ahead + torch.rand(len(p), generator=generator, dtype=p.dtype) * own[:, 0]


def _sums(p: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p [m, V], codes [m] drawn from it -> how often each was seen less how often expected [V], the
    latter [V], and the covariance [V, V]."""
    expected = p.sum(0)
    seen = torch.bincount(codes, minlength=p.shape[-1]).to(p.dtype)
    return seen - expected, expected, torch.diag(expected) - p.T @ p


def _sums_pvalue(sums: Iterable[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Of independent sums; codes that are expected rarely are one more cell, which is left out."""
    total, freedom = 0.0, 0
    for gap, expected, covariance in sums:
        kept = (expected >= LEAST_SUM).nonzero().flatten()
        if float(expected.sum() - expected[kept].sum()) < LEAST_SUM:
            kept = kept[:-1]
        if len(kept):
            inverse = torch.linalg.pinv(covariance[kept][:, kept], hermitian=True)
            total += float(gap[kept] @ inverse @ gap[kept])
            freedom += len(kept)
    return float(chi2.sf(total, freedom)) if freedom else 1.0
