"""Intervals: bootstrap of means and paired ratios, jackknife, and what a change of seed alone does.

Why: decoders are compared on a few hundred prompts, so every figure needs an interval, and a
difference must be told apart from what a mere change of seed does (the reseed band). Intervals are
of 95 %: percentile bootstrap intervals (Efron 1979), or jackknife ones where duplicates would bias
a statistic; all are seeded, so the same rows give the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from metrics import MetricError

_CHUNK = 4_000_000  # index entries drawn together: bounds memory at about 32 MB
REACH = 2  # differences of two seeds that the reseed band reaches, where one other was run
FEWEST_BLOCKS = 5  # fewer say nothing of how blocks differ
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


def bootstrap_mean(values: ArrayLike, *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of n >= 2 finite values and its interval over resampled values."""
    data = _checked(values, "values")
    draws = [data[rows].mean(-1) for rows in _resampled_rows(len(data), resamples, seed)]
    return _interval(float(data.mean()), np.concatenate(draws))


def paired_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    *,
    blocks: ArrayLike | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """mean(numerator) / mean(denominator) of n paired values, pairs resampled together.

    For a speed-up: seconds of AR over seconds of the decoder on the same prompts. Pairing removes
    what a prompt or a drift of the machine does to both. What a moment of the machine does to one
    of them and not to the other is common to the pairs timed in it: `blocks` ([n], equal numbers
    for pairs of one moment) makes the moments what is resampled, B - 1 of B blocks, which leaves
    the variance unbiased (Rao and Wu 1988), and the interval is as much wider as Student's t is at
    B - 1 degrees of freedom. Fewer than `FEWEST_BLOCKS` blocks count as none. Moments that last
    longer than a block make the interval too narrow. Raises MetricError unless both have the same
    n >= 2 and the denominator is positive.
    """
    top, bottom = _checked(numerator, "numerator"), _checked(denominator, "denominator")
    if len(top) != len(bottom):
        raise MetricError(
            f"a paired ratio needs pairs: {len(top)} numerators, {len(bottom)} denominators; keep "
            "the prompts that both have"
        )
    if bottom.min() <= 0:
        raise MetricError(f"denominators must be positive, found {bottom.min():g}")
    tops, bottoms, drawn, stretch = top, bottom, len(top), 1.0
    if blocks is not None:
        number = np.unique(np.asarray(blocks), return_inverse=True)[1]  # [n]
        if number.shape != top.shape:
            raise MetricError(f"expected a block for each of {len(top)} pairs, found {len(number)}")
        if number.max() + 1 >= FEWEST_BLOCKS:
            tops, bottoms = np.bincount(number, top), np.bincount(number, bottom)
            drawn = len(tops) - 1
            stretch = float(stdtrit(drawn, SIDE)) / NORMAL
    ratios = np.concatenate(
        [
            tops[rows].sum(1) / bottoms[rows].sum(1)
            for rows in _resampled_rows(len(tops), resamples, seed, drawn)
        ]
    )
    value = float(top.mean() / bottom.mean())
    return _interval(value, value + stretch * (ratios - value))


def fastest_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    moments: ArrayLike,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """mean(fastest numerator) / mean(fastest denominator) of n pairs that were timed R times each,
    seconds [n, R]; NaN in either where a pair has no such timing.

    Neighbours on a machine only ever add time, so the fastest of several timings is the nearest to
    what a pair takes without them. What is left of them belongs to the moments in which it was
    timed: moments [n, R], equal numbers for timings of one moment. Resampled are the pairs and, for
    all pairs that share their R moments, those moments, R - 1 of R as in `paired_ratio`, so that
    the interval says what another run at other moments would find. A fastest of fewer moments is
    one of a busier hour, to which the interval leans; it holds the estimate. Raises MetricError for
    other shapes, n < 2, times that are not positive, or a pair without a timing of both.
    """
    top, bottom, number = (np.asarray(x, np.float64) for x in (numerator, denominator, moments))
    if top.ndim != 2 or len(top) < 2 or not top.shape == bottom.shape == number.shape:
        raise MetricError(
            "expected times and moments [n >= 2, R] of the same pairs, found "
            f"{top.shape}, {bottom.shape} and {number.shape}"
        )
    absent = np.isnan(top) | np.isnan(bottom)
    if absent.all(1).any() or not (top[~absent] > 0).all() or not (bottom[~absent] > 0).all():
        raise MetricError("expected of every pair a positive time of both in one of its moments")
    fastest = [np.where(absent, np.inf, x).min(1, keepdims=True) for x in (top, bottom)]
    top, bottom = (np.where(absent, low, x) for x, low in zip((top, bottom), fastest, strict=True))
    together = np.unique(number, axis=0, return_inverse=True)[1].reshape(-1)  # [n]
    kept = max(top.shape[1] - 1, 1)
    rng = np.random.default_rng(seed + 1)  # not the numbers that draw the pairs
    ratios = []
    for rows in _resampled_rows(len(top), resamples, seed):
        drawn = rng.integers(0, top.shape[1], (len(rows), together.max() + 1, kept))
        timing = np.take_along_axis(drawn, together[rows][:, :, None], 1)  # [r, n, kept]
        a, b = (np.take_along_axis(x[rows], timing, 2).min(2).mean(1) for x in (top, bottom))
        ratios.append(a / b)
    value = float(fastest[0].mean() / fastest[1].mean())
    found = _interval(value, np.concatenate(ratios))
    return Interval(value, min(found.lo, value), max(found.hi, value))


def left_out(
    count: int, without: Callable[[np.ndarray], float], *, groups: int = 32, seed: int = 0
) -> np.ndarray:
    """A statistic of all rows, and without each of K random groups, [1 + K]; ``without(rows)`` gets
    the sorted indices that are left out, none first."""
    if count < 3:
        raise MetricError(f"a jackknife needs at least 3 rows, found {count}")
    groups = min(groups, count)
    rows = np.random.default_rng(seed).permutation(count)
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


def _resampled_rows(
    count: int, resamples: int, seed: int, drawn: int | None = None
) -> Iterator[np.ndarray]:
    """Resampled row indices, int32, in chunks [r, drawn] that together have `resamples` rows;
    drawn None: count."""
    if resamples < 1:
        raise MetricError(f"the number of resamples must be at least 1, found {resamples}")
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // count)
    for start in range(0, resamples, step):
        size = (min(step, resamples - start), drawn or count)
        yield rng.integers(0, count, size, dtype=np.int32)


def _checked(values: ArrayLike, what: str) -> np.ndarray:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or len(data) < 2:
        raise MetricError(f"{what}: expected at least 2 numbers in a row, found {data.shape}")
    if not np.isfinite(data).all():
        raise MetricError(
            f"{what}: {int((~np.isfinite(data)).sum())} of {len(data)} are not finite"
        )
    return data


def _interval(value: float, draws: np.ndarray) -> Interval:
    lo, hi = np.quantile(draws, [(1 - 0.95) / 2, SIDE])
    return Interval(value, float(lo), float(hi))
