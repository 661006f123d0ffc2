"""A machine's speed-up from replicates: runs of one study on other prompts under other seeds.

Replicate r = 1..R measures y_r, the logarithm of a ratio of seconds, with the error e_r of its own
prompts and moments (`metrics.speedup`). The machine's ratio and its interval are

    exp(mean(y) +- t_{R-1} s / sqrt(R)),        s the standard deviation of y

and never narrower than the replicates' own errors give, sqrt(sum e_r^2) / R. An hour of the machine
moves all decoders of a replicate alike, so two decoders are compared by their ratio in each
replicate. Why not one study run several times: its prompts stay, and their luck with them. An
interval that divides their error by R held the truth in 0.76 of simulated cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from metrics.speedup import Speedup, satterthwaite
from metrics.stats import Interval

LEVEL = 0.05  # share of intervals that miss the truth


@dataclass(frozen=True)
class Replicated:
    """A ratio that each of R >= 1 replicates measured, by the number of the replicate. It reads as
    a `Speedup` does."""

    each: Mapping[int, Speedup]

    @property
    def value(self) -> float:
        """The geometric mean."""
        return math.exp(float(self._logs.mean()))

    @property
    def blocks(self) -> int:
        """Of all replicates."""
        return sum(one.blocks for one in self.each.values())

    @property
    def count(self) -> int:
        """The pairs of a contrast: blocks."""
        return self.blocks

    @property
    def least(self) -> float:
        """In the block that is worst for the decoder."""
        return min(one.least for one in self.each.values())

    @property
    def greatest(self) -> float:
        return max(one.greatest for one in self.each.values())

    @property
    def _logs(self) -> np.ndarray:
        return np.log([one.value for one in self.each.values()])

    @property
    def _errors(self) -> list[tuple[float, float]]:
        """The standard errors of the logarithm, each with its degrees of freedom: by the spread of
        the replicates, and by their own errors."""
        if len(self.each) == 1:
            return [one.error for one in self.each.values()]
        count, logs = len(self.each), self._logs
        errors = [one.error for one in self.each.values()]
        own = satterthwaite(*((error**2 / count**2, freedom) for error, freedom in errors))
        found = [(float(logs.std(ddof=1)) / math.sqrt(count), count - 1.0)]
        return found + [(math.sqrt(own[0]), own[1])] * math.isfinite(own[0])

    @property
    def error(self) -> tuple[float, float]:
        """The standard error of the logarithm, and its degrees of freedom: those of `_errors` that
        reach farther."""
        return max(self._errors, key=lambda one: one[0] * _t(one[1], LEVEL))

    def interval(self, level: float = LEVEL) -> Interval:
        """The interval that misses the machine's ratio in a share `level` of cases."""
        reach = math.exp(max(_t(freedom, level) * error for error, freedom in self._errors))
        return Interval(self.value, self.value / reach, self.value * reach)

    @property
    def p(self) -> float:
        """Two-sided, of a ratio of 1 (Student's t)."""
        off = abs(math.log(self.value))
        found = [2 * float(stdtr(f, -off / e)) if e else float(not off) for e, f in self._errors]
        return max(found)


Ratio = Speedup | Replicated


def over(one: Ratio, other: Ratio) -> Ratio:
    """A ratio over that of other runs, whose moments are others. Replicates that both have are of
    the same prompts, and are compared one by one."""
    if isinstance(one, Speedup) and isinstance(other, Speedup):
        return one.over(other)
    if isinstance(one, Replicated) and isinstance(other, Replicated):
        shared = one.each.keys() & other.each.keys()
        if len(shared) > 1:
            return Replicated({k: one.each[k].over(other.each[k]) for k in sorted(shared)})
    errors = [(error**2, freedom) for error, freedom in (one.error, other.error)]
    blocks = min(one.blocks, other.blocks)
    return Speedup(one.value / other.value, satterthwaite(*errors), {}, blocks)


def pooled(replicates: Sequence[Speedup], level: float = LEVEL) -> Interval:
    """The ratio over replicates that each measured it, and the interval that misses the machine's
    own in a share `level` of cases. One replicate: its own ratio and interval, which is of that run
    alone."""
    return Replicated(dict(enumerate(replicates))).interval(level)


def simultaneous(every: Sequence[Sequence[Speedup]], level: float = LEVEL) -> list[Interval]:
    """The ratios of K decoders over replicates [K][R], with intervals that all hold together but
    for a share `level` of cases (Bonferroni). For whatever is picked out of K, as the fastest."""
    return [pooled(one, level / len(every)) for one in every]


def narrower(replicates: int, more: int) -> float:
    """By which factor intervals shrink from so many replicates (two or more) to `more`, on
    average: t_{R-1} / sqrt(R)."""
    one, other = (_t(count - 1, LEVEL) / math.sqrt(count) for count in (replicates, more))
    return other / one


def _t(freedom: float, level: float) -> float:
    """The two-sided quantile of Student's t."""
    return float(stdtrit(freedom, 1 - level / 2))
