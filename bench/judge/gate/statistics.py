"""Are sampled images from a given law? Two chi-square tests, both with known false-alarm rates."""

from __future__ import annotations

import torch
from scipy.stats import chi2
from torch import Tensor

from bench.judge.gate.reference import ImageLaw

LEAST_EXPECTED = 5.0  # cells expected less often are pooled
LEAST_SUM = 20.0  # codes expected less often after a given code are pooled


def prefix_pvalues(law: ImageLaw, codes: Tensor) -> list[float]:
    """codes [n, L] of enumerable images -> p-value of the first 1, 2, ..., L codes against the law.

    Short prefixes have few cells, hence the power to see a small bias; the whole image sees
    dependence.
    """
    return [
        _pvalue(law.of_prefix(size), law.index(codes, size)) for size in range(1, law.length + 1)
    ]


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


def _pvalue(probability: Tensor, cells: Tensor) -> float:
    """Pearson's test with rare cells pooled; 0 if an impossible cell was seen."""
    observed = torch.bincount(cells, minlength=len(probability)).double()
    if bool((observed[probability == 0] > 0).any()):
        return 0.0
    expected, order = (probability * len(cells)).sort(descending=True)
    observed = observed[order]
    rare = expected < LEAST_EXPECTED
    kept = max(1, int((~rare).sum()))
    pooled = float(expected[kept:].sum())
    if 0 < pooled < LEAST_EXPECTED and kept > 1:
        kept -= 1
    pair = [torch.cat([x[:kept], x[kept:].sum()[None]]) for x in (observed, expected)]
    seen, wanted = (x[pair[1] > 0] for x in pair)
    if len(wanted) < 2:
        return 1.0
    return float(chi2.sf(float(((seen - wanted) ** 2 / wanted).sum()), len(wanted) - 1))


def calibration_pvalue(p: Tensor, codes: Tensor) -> float:
    """p [n, L, V] float64, the law of every code given the ones before it; codes [n, L].

    In an exact decoder onehot(code) - p has mean 0 and covariance diag(p) - p p^T whatever went
    before. Summed over all places that follow the same code (an error of acceptance favours the
    codes that the drafter favours there), the Mahalanobis distances add up to a chi-square.
    """
    if bool((p.gather(-1, codes[..., None]) == 0).any()):
        return 0.0
    vocab = p.shape[-1]
    before, now, law = codes[:, :-1].flatten(), codes[:, 1:].flatten(), p[:, 1:].flatten(0, 1)
    total, freedom = 0.0, 0
    for previous in range(vocab):
        mine = before == previous
        expected = law[mine].sum(0)  # [V]
        kept = (expected >= LEAST_SUM).nonzero().flatten()
        if float(expected.sum() - expected[kept].sum()) < LEAST_SUM:
            kept = kept[:-1]  # the rest is one more cell, which is left out
        if not len(kept):
            continue
        s = law[mine][:, kept]  # [m, cells]
        hit = (now[mine, None] == kept).double()
        gap = (hit - s).sum(0)
        covariance = torch.diag(s.sum(0)) - s.T @ s
        total += float(gap @ torch.linalg.solve(covariance, gap))
        freedom += len(kept)
    return float(chi2.sf(total, freedom)) if freedom else 1.0
