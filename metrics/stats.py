"""Confidence intervals of 95 % (Student's t, jackknife), the reseed band (what a mere change of
seed does), and the non-inferiority test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from metrics import MetricError

RESEED_REACH = 2  # differences of two seeds that the reseed band reaches, where one other was run
LEVEL = 0.05  # share of intervals that miss the truth
NORMAL_REACH = NormalDist().inv_cdf(1 - LEVEL / 2)
TELLING_REACH = NormalDist().inv_cdf(0.95) + NormalDist().inv_cdf(0.8)  # 2.49
NOT_WORSE, WORSE, NOT_TOLD = "not worse", "worse", "not told"
MOST_IMAGES = 10_000  # that `not told` asks for by their number; nobody decodes more


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


NO_INTERVAL = Interval(np.nan, np.nan, np.nan)


def t_quantile(freedom: float, level: float = LEVEL) -> float:
    """The two-sided quantile of Student's t, beyond which a share `level` lies."""
    return float(stdtrit(freedom, 1 - level / 2))


def t_pvalue(off: float, error: float, freedom: float) -> float:
    """Two-sided, of a value that is `off` from the expected one (Student's t). Without an error a
    difference is sure, and none is none."""
    return 2 * float(stdtr(freedom, -abs(off) / error)) if error else float(not off)


def student_mean(values: ArrayLike) -> Interval:
    """Mean of n finite values: mean +- t(n - 1) s / sqrt(n); of one value without an interval."""
    data = _checked(values, "values", least=1)
    if len(data) == 1:
        return Interval(float(data[0]), np.nan, np.nan)
    error = float(data.std(ddof=1)) / len(data) ** 0.5
    return _around(float(data.mean()), t_quantile(len(data) - 1) * error)


def wilson(share: float, trials: float, reach: float) -> Interval:
    """The interval of a share of n trials that lies within 0 .. 1 (Wilson 1927): all shares that
    are at most z standard errors, sqrt(share (1 - share) / n), from the one found. Of a share of 0
    or 1 it has a width too. reach: z."""
    shrunk = 1 + reach**2 / trials
    centre = (share + reach**2 / (2 * trials)) / shrunk
    half = reach * math.sqrt(share * (1 - share) / trials + (reach / (2 * trials)) ** 2) / shrunk
    lo, hi = min(share, centre - half), max(share, centre + half)  # but for rounding
    return Interval(share, max(lo, 0.0), min(hi, 1.0))


def share_mean(values: ArrayLike) -> Interval:
    """Mean of n shares from 0 to 1, with Wilson's interval of as many trials as have the standard
    error s / sqrt(n) that was found (Korn and Graubard 1998), and t(n - 1) for z; of one share
    without an interval."""
    data, mean = _checked(values, "shares", least=1), student_mean(values)
    if data.min() < 0 or data.max() > 1:
        raise MetricError(f"shares: expected 0 to 1, found {data.min():g} to {data.max():g}")
    error = float(data.std()) / max(len(data) - 1, 1) ** 0.5
    if not error:  # one share, or equal ones
        return mean
    trials = mean.value * (1 - mean.value) / error**2
    return wilson(mean.value, trials, t_quantile(len(data) - 1))


@dataclass(frozen=True)
class PairedDifference:
    """Differences of n >= 2 images, by Student's t. less: [n]."""

    less: np.ndarray

    @property
    def count(self) -> int:
        return len(self.less)

    @property
    def error(self) -> float:
        return float(self.less.std(ddof=1)) / self.count**0.5

    @property
    def p(self) -> float:
        """Two-sided, of no difference."""
        return t_pvalue(float(self.less.mean()), self.error, self.count - 1)

    def interval(self, level: float = LEVEL) -> Interval:
        """The mean, with an interval that misses the truth in a share `level` of cases."""
        return _around(float(self.less.mean()), t_quantile(self.count - 1, level) * self.error)


def student_ratio(numerator: ArrayLike, denominator: ArrayLike) -> Interval:
    """R = sum(numerator) / sum(denominator) of n pairs, as codes over forwards, an image a pair: +-
    t(n - 1) s / sqrt(n), s of `linearised_ratio`; of one pair without an interval."""
    value, off = linearised_ratio(numerator, denominator)
    return _around(value, student_mean(off).half_width)


def linearised_ratio(numerator: ArrayLike, denominator: ArrayLike) -> tuple[float, np.ndarray]:
    """R = sum(numerator) / sum(denominator) of n pairs, and what each moves it by to first order,
    (numerator - R denominator) / mean(denominator): [n], of mean 0."""
    top, bottom = (
        _checked(x, what, 1) for x, what in ((numerator, "numerator"), (denominator, "denominator"))
    )
    value = float(top.sum() / bottom.sum())
    return value, (top - value * bottom) / bottom.mean()


def jackknife_values(
    count: int, without: Callable[[np.ndarray], float], *, groups: int = 32
) -> np.ndarray:
    """A statistic of `count` >= 3 rows, and without each of K random groups, [1 + K];
    ``without(rows)`` gets the sorted indices that are left out, none first."""
    groups = min(groups, count)
    rows = np.random.default_rng(0).permutation(count)
    parts = [rows[:0], *(np.sort(rows[k::groups]) for k in range(groups))]
    return np.array([without(part) for part in parts])


def jackknife(
    values: np.ndarray, *, least: float = -np.inf, most: float = np.inf, wide: float = 1.0
) -> Interval:
    """Normal interval from the delete-a-group jackknife, of `jackknife_values`: [1 + K]. The
    interval ends at `least` and `most`.

    SE^2 = (K - 1) / K sum_k (t_k - mean t)^2 / wide^2, t_k without group k of K groups (Efron
    1981). For statistics whose bias depends on the number of *distinct* rows: a bootstrap resample
    has 63 % of them, so percentile intervals of FID lie wholly above FID itself. wide: by how much
    the jackknife overstates the spread of such a statistic.
    """
    each, groups = values[1:], len(values) - 1
    error = float(np.sqrt((groups - 1) / groups * ((each - each.mean()) ** 2).sum())) / wide
    normal = _around(float(values[0]), NORMAL_REACH * error)
    return Interval(normal.value, max(normal.lo, least), min(normal.hi, most))


def reseed_range(runs: ArrayLike) -> Interval:
    """Where a figure lies when nothing but the seed changes: around the mean of n >= 2 runs that
    differ in the seed alone, first the one that others are compared with. n >= 3: Student's
    interval of one further run, mean +- t(n - 1) SD sqrt(1 + 1 / n). Two runs say too little of how
    others scatter (t(1) is 12.7): the first +- `RESEED_REACH` times their difference."""
    data = _checked(runs, "runs")
    if len(data) == 2:
        return _around(float(data[0]), RESEED_REACH * abs(float(data[1] - data[0])))
    return _around(float(data.mean()), t_quantile(len(data) - 1) * _further(data))


def reseed_p(runs: Sequence[float], figure: float) -> float:
    """Two-sided p of a figure as that of one further run (Student's t), given n >= 2 runs that
    differ in the seed alone; NaN for fewer, or where one is NaN."""
    data = np.asarray([*runs, figure], np.float64)
    if len(data) < 3 or np.isnan(data).any():
        return float("nan")
    seeds = data[:-1]
    return t_pvalue(figure - float(seeds.mean()), _further(seeds), len(seeds) - 1)


def differs_by_chance(runs: Sequence[float], level: float) -> float:
    """How far two single runs lie apart by their seeds alone, but for a share `level` of cases:
    t(k - 1, 1 - level / 2) s sqrt(2), s over k >= 2 runs; NaN for fewer, or where one is NaN."""
    data = np.asarray(runs, np.float64)
    if len(data) < 2 or np.isnan(data).any():
        return float("nan")
    return t_quantile(len(data) - 1, level) * float(data.std(ddof=1)) * math.sqrt(2)


def _further(seeds: np.ndarray) -> float:
    """Standard error of one further run around the mean of n."""
    return float(seeds.std(ddof=1)) * float(np.sqrt(1 + 1 / len(seeds)))


@dataclass(frozen=True)
class NonInferiority:
    """Whether a mean difference to AR is above -margin, by one-sided bounds of 95 % (Student's t).
    verdict: *not worse* where the lower bound is above it, *worse* where the upper bound is below,
    else *not told*; images: how many would tell in four of five runs, ((z_.95 + z_.8) s / d)^2, d
    the margin, or what is between the mean and minus the margin if that is less; 0 where that is
    nothing. s is that of this decoder."""

    verdict: str
    margin: float
    images: int = 0

    def __str__(self) -> str:
        if self.verdict == NOT_WORSE:
            return f"{self.verdict} (margin {self.margin:g})"
        if self.verdict == NOT_TOLD and self.images:
            more = self.images > MOST_IMAGES
            return f"{self.verdict} (n {f'> {MOST_IMAGES:,}' if more else f'= {self.images}'})"
        return self.verdict


def non_inferiority(mean: float, sd: float, count: int, margin: float) -> NonInferiority:
    """Of a mean difference over `count` >= 2 prompts with standard deviation `sd`."""
    reach = float(stdtrit(count - 1, 0.95)) * sd / math.sqrt(count)
    if mean - reach > -margin:
        return NonInferiority(NOT_WORSE, margin)
    if mean + reach < -margin:
        return NonInferiority(WORSE, margin)
    distance = min(margin, abs(mean + margin))
    needed = math.ceil((TELLING_REACH * sd / distance) ** 2) if distance else 0
    return NonInferiority(NOT_TOLD, margin, needed)


def _around(value: float, reach: float) -> Interval:
    return Interval(value, value - reach, value + reach)


def _checked(values: ArrayLike, what: str, least: int = 2) -> np.ndarray:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or len(data) < least:
        raise MetricError(f"{what}: expected at least {least} numbers in a row, found {data.shape}")
    if not np.isfinite(data).all():
        raise MetricError(
            f"{what}: {int((~np.isfinite(data)).sum())} of {len(data)} are not finite"
        )
    return data
