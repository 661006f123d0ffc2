"""Are sampled codes from a given law? Tests with known false-alarm rates: Pearson's, of counts, and
a normal one of sums over many laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2, norm
from torch import Tensor

LEAST_EXPECTED = 5.0  # rarer cells are pooled
ALARM = 1e-4  # adjusted p-value below which new noise is drawn
CERTAIN = 1e-9  # a p-value below this needs no second look
MISSED = 0.01  # chance that an error of the size of `resolution` is missed


def sample_and_test(
    sample: Callable[[], Any], pvalues: Callable[[Any], Sequence[float]]
) -> tuple[Any, float]:
    """Samples and tests; once more with new noise after an alarm that may be chance, so that chance
    alone raises an alarm in fewer than one of a million. -> the last sample, and the least p-value
    times the number of tests (Bonferroni)."""
    for _ in range(2):
        codes = sample()
        values = [value if math.isfinite(value) else 0.0 for value in pvalues(codes)]
        adjusted = min(1.0, min(values) * len(values))
        if not CERTAIN <= adjusted < ALARM:
            break
    return codes, adjusted


def alarm(adjusted: float, words: str) -> str:
    """The fault that a p-value shows; "" for none."""
    return "" if adjusted >= ALARM else f"{words} (p {adjusted:.1g})"


def resolution(images: int, cells: int, tests: int) -> float:
    """The least TV that Pearson's test of `cells` cells finds in so many images, as one of `tests`:
    a law that is away by t has a chi-square of at least 4 t^2 per image."""
    freedom = max(1, cells - 1)
    limit = chi2.isf(ALARM / tests, freedom)
    needed = brentq(lambda x: ncx2.cdf(limit, freedom, x) - MISSED, 1e-6, 10 * limit + 100)
    return float(0.5 * math.sqrt(needed / images))


def pearson(observed: Tensor, expected: Tensor) -> float:
    """p-value of counts [cells] by Pearson's test, with rare cells pooled. If draws have different
    laws, whose sum is `expected`, it is a little too large."""
    expected, order = expected.sort(descending=True)
    observed = observed[order].double()
    alone = max(1, int((expected >= LEAST_EXPECTED).sum()))
    if 0 < float(expected[alone:].sum()) < LEAST_EXPECTED and alone > 1:
        alone -= 1
    pooled = [torch.cat([x[:alone], x[alone:].sum()[None]]) for x in (observed, expected)]
    observed, expected = (x[pooled[1] > 0] for x in pooled)
    if len(expected) < 2:
        return 1.0
    return float(chi2.sf(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1))


def draw_pvalues(parts: Iterable[tuple[Tensor, Tensor]], possible: bool = True) -> list[float]:
    """Parts of laws [m, V] float64 and codes [m], each drawn from its law whatever went before ->
    p-values of how often each code is drawn, and of draws that are too sharp or too flat. possible:
    a code of probability zero is an error, as no rounding explains it."""
    observed = expected = torch.zeros(1, dtype=torch.float64)
    gap, variance = 0.0, 0.0
    for laws, codes in parts:
        p = laws.gather(1, codes[:, None])[:, 0]
        if not bool(torch.isfinite(laws).all()) or (possible and not bool((p > 0).all())):
            return [0.0]
        expected = expected + laws.sum(0)
        observed = observed + torch.bincount(codes, minlength=laws.shape[1])
        score = laws.sqrt()  # large for likely codes
        mean = (laws * score).sum(1)
        gap += float((p.sqrt() - mean).sum())
        variance += float(((laws * score**2).sum(1) - mean**2).sum())
    sharp = 2 * float(norm.sf(abs(gap) / variance**0.5)) if variance > 1e-12 else 1.0
    return [pearson(observed, expected), sharp]
