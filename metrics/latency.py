"""Ratios of seconds as on a quiet machine, over the same prompts.

Why: decoders are interleaved prompt by prompt, so a slow moment of the machine hits both of a pair,
if not always by the same factor, which is what moments are for (METHODS section 5). All times are
wall-clock seconds, device-synchronised by whoever measured them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from metrics import MetricError
from metrics.stats import SIDE, Interval


@dataclass(frozen=True)
class Timings:
    """All timings of a decoder in one run, N of them, of the prompts 0 to n - 1: which prompt [N];
    seconds of prefill and in total, float64 [N]; target forwards [N]; `moment` [N], equal integers
    for what was timed at one time. Decoders of one run share its moments."""

    run: str
    prompt: np.ndarray
    moment: np.ndarray
    prefill: np.ndarray
    total: np.ndarray
    forwards: np.ndarray

    def quiet(self, weights: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Seconds an image when the machine is quiet: the lower quartiles of prefill and of a
        step's seconds, with the mean number of steps. weights [1 + r, N]: how often each timing
        counts; prompts [r, n], which ones count, all in the first place -> [1 + r]."""
        step = (self.total - self.prefill) / self.forwards
        first, later = (_lower_quartile(x, weights) for x in (self.prefill, step))
        each = np.bincount(self.prompt, self.forwards) / np.bincount(self.prompt)  # [n]
        return first + later * np.append(each.mean(), each[prompts].mean(1))


@dataclass(frozen=True)
class LogRatio:
    """A positive ratio, the standard error of its logarithm, and the degrees of freedom of both."""

    value: float
    error: float
    freedom: int

    @property
    def p(self) -> float:
        """Two-sided, of a ratio of 1 (Student's t)."""
        shift = abs(math.log(self.value))
        if not self.error:
            return float(not shift)
        return 2 * float(stdtr(self.freedom, -shift / self.error))

    def interval(self) -> Interval:
        """Of 95 %."""
        reach = math.exp(float(stdtrit(self.freedom, SIDE)) * self.error)
        return Interval(self.value, self.value / reach, self.value * reach)


def quiet_ratio(
    tops: Sequence[Timings], bottoms: Sequence[Timings], *, resamples: int = 2000, seed: int = 0
) -> LogRatio:
    """The product of the tops' seconds over that of the bottoms', each as on a quiet machine. All
    are of the same n >= 2 prompts.

    Neighbours on a machine only ever add time, so lower quartiles of a step are nearer to what it
    takes without them, and move less from run to run than means. Not quartiles of whole images:
    those would pick the images that took few forwards. Resampled are the prompts, the same ones for
    all, and the moments of each run, B - 1 of B as in `paired_ratio`. Moments that last longer than
    a block make the error too small. Raises MetricError where prompts or shapes differ, or a
    run has a single moment.
    """
    every = [*tops, *bottoms]
    count = len(np.unique(every[0].prompt))
    if count < 2 or any(len(one.forwards) != len(one.prompt) for one in every):
        raise MetricError(f"expected timings of 2 prompts or more, found {count}")
    if any(not np.array_equal(np.unique(one.prompt), np.arange(count)) for one in every):
        raise MetricError(f"expected timings of the same prompts, 0 to {count - 1}")
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, count, (resamples, count))
    logs, freedom = np.zeros(1 + resamples), 0
    for run in sorted({one.run for one in every}):
        moments = np.unique(np.concatenate([one.moment for one in every if one.run == run]))
        if len(moments) < 2:
            raise MetricError("expected timings of 2 moments of a run or more, found 1")
        counts = _moment_counts(len(moments), resamples, rng)
        freedom += len(moments) - 1
        for sign, sides in ((1, tops), (-1, bottoms)):
            for one in (side for side in sides if side.run == run):
                weights = counts[:, np.searchsorted(moments, one.moment)]
                logs += sign * np.log(one.quiet(weights, prompts))
    return LogRatio(math.exp(logs[0]), float(np.nanstd(logs[1:], ddof=1)), freedom)


def _moment_counts(moments: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each moment counts, [1 + resamples, moments]: first all once, then B - 1 of B."""
    drawn = rng.multinomial(moments - 1, np.full(moments, 1 / moments), resamples)
    return np.vstack([np.ones((1, moments), int), drawn])


def _lower_quartile(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """values [N], each as often as weights [r, N] say -> [r]; NaN where none is drawn."""
    order = np.argsort(values)
    reached = weights[:, order].cumsum(1)  # [r, N]
    place = (reached >= 0.25 * reached[:, -1:]).argmax(1)
    return np.where(reached[:, -1] > 0, values[order][place], np.nan)
