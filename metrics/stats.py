"""Intervals of means and ratios by Student's t, jackknife, and what a change of seed alone does.

Why: decoders are compared on a few hundred prompts, so every figure needs an interval, and a
difference must be told apart from what a mere change of seed does (the reseed band). Intervals are
of 95 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from metrics import MetricError

REACH = 2  # differences of two seeds that the reseed band reaches, where one other was run
SIDE = (1 + 0.95) / 2  # the upper end of an interval, as a share of the law
NORMAL = NormalDist().inv_cdf(SIDE)


@dataclass(frozen=True)
class Interval:
    """A point estimate and its interval; lo and hi equal the estimate where nothing varies."""

    value: float
    lo: float
    hi: float

    @property
    def half_width(self) -> float:
        """Half the interval's width, in the unit of the value."""
        return (self.hi - self.lo) / 2

    def contains(self, value: float) -> bool:
        return self.lo <= value <= self.hi


UNKNOWN = Interval(np.nan, np.nan, np.nan)


def student_mean(values: ArrayLike) -> Interval:
    """Mean of n >= 2 finite values: mean +- t(n - 1) s / sqrt(n)."""
    data = _checked(values, "values")
    error = float(data.std(ddof=1)) / len(data) ** 0.5
    return _around(float(data.mean()), float(stdtrit(len(data) - 1, SIDE)) * error)


def student_ratio(numerator: ArrayLike, denominator: ArrayLike) -> Interval:
    """R = sum(numerator) / sum(denominator) of n >= 2 pairs, as codes over forwards, an image a
    pair: +- t(n - 1) s / sqrt(n), s of (numerator - R denominator) / mean(denominator).

    Raises MetricError unless both have the same n and the denominators' sum is positive.
    """
    top, bottom = _checked(numerator, "numerator"), _checked(denominator, "denominator")
    if len(top) != len(bottom):
        raise MetricError(
            f"a ratio needs pairs: {len(top)} numerators, {len(bottom)} denominators; keep the "
            "images that both have"
        )
    if bottom.sum() <= 0:
        raise MetricError(f"denominators must add to more than 0, found {bottom.sum():g}")
    value = float(top.sum() / bottom.sum())
    off = student_mean((top - value * bottom) / bottom.mean())
    return _around(value, off.half_width)


def left_out(count: int, without: Callable[[np.ndarray], float], *, groups: int = 32) -> np.ndarray:
    """A statistic of all rows, and without each of K random groups, [1 + K]; ``without(rows)`` gets
    the sorted indices that are left out, none first."""
    if count < 3:
        raise MetricError(f"a jackknife needs at least 3 rows, found {count}")
    groups = min(groups, count)
    rows = np.random.default_rng(0).permutation(count)
    parts = [rows[:0], *(np.sort(rows[k::groups]) for k in range(groups))]
    return np.array([without(part) for part in parts])


def jackknife(
    values: np.ndarray, *, least: float = -np.inf, most: float = np.inf, wide: float = 1.0
) -> Interval:
    """Normal interval from the delete-a-group jackknife, of what `left_out` returns: [1 + K]. The
    interval ends at `least` and `most`.

    SE^2 = (K - 1) / K sum_k (t_k - mean t)^2 / wide^2, t_k without group k of K groups (Efron
    1981). For statistics whose bias depends on the number of *distinct* rows: a bootstrap resample
    has 63 % of them, so percentile intervals of FID lie wholly above FID itself. wide: by how much
    the jackknife overstates the spread of such a statistic.
    """
    each, groups = values[1:], len(values) - 1
    error = float(np.sqrt((groups - 1) / groups * ((each - each.mean()) ** 2).sum())) / wide
    found = _around(float(values[0]), NORMAL * error)
    return Interval(found.value, max(found.lo, least), min(found.hi, most))


def reseed_range(runs: ArrayLike) -> Interval:
    """Where a figure lies when nothing but the seed changes: around the mean of n >= 2 runs that
    differ in the seed alone, first the one that others are compared with.

    n >= 3: Student's interval of one further run, mean +- t(n - 1) SD sqrt(1 + 1 / n). Two runs
    say too little of how others scatter (t(1) is 12.7): the first +- `REACH` times their
    difference.
    """
    data = _checked(runs, "runs")
    if len(data) == 2:
        return _around(float(data[0]), REACH * abs(float(data[1] - data[0])))
    return _around(float(data.mean()), float(stdtrit(len(data) - 1, SIDE)) * _further(data))


def reseed_p(runs: Sequence[float], figure: float) -> float:
    """Two-sided p of a figure as that of one further run (Student's t), given n >= 2 runs that
    differ in the seed alone; NaN for fewer, or where one is NaN."""
    data = np.asarray([*runs, figure], np.float64)
    if len(data) < 3 or np.isnan(data).any():
        return float("nan")
    seeds = data[:-1]
    shift, error = abs(figure - seeds.mean()), _further(seeds)
    return float(2 * stdtr(len(seeds) - 1, -shift / error)) if error else float(not shift)


def _further(seeds: np.ndarray) -> float:
    """Standard error of one further run around the mean of n."""
    return float(seeds.std(ddof=1)) * float(np.sqrt(1 + 1 / len(seeds)))


def p_of_zero(difference: Interval) -> float:
    """Two-sided p of no difference, by the normal law that has the interval."""
    if not difference.half_width:
        return float(not difference.value)
    shift = NORMAL * abs(difference.value) / difference.half_width
    return 2 * NormalDist().cdf(-shift)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of several hypotheses are refused, so that one or more true ones are at most so often
    (Holm 1979): by rising p, each at the level over those that are left, until one is not."""
    refused = [False] * len(p_values)
    for done, at in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[at] > level / (len(p_values) - done):
            break
        refused[at] = True
    return refused


def _around(value: float, reach: float) -> Interval:
    return Interval(value, value - reach, value + reach)


def _checked(values: ArrayLike, what: str) -> np.ndarray:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or len(data) < 2:
        raise MetricError(f"{what}: expected at least 2 numbers in a row, found {data.shape}")
    if not np.isfinite(data).all():
        raise MetricError(
            f"{what}: {int((~np.isfinite(data)).sum())} of {len(data)} are not finite"
        )
    return data
