"""The speed-up: the typical ratio of two decoders' seconds per image, from timings close in time.

Blocks b = 1..B in time order, every decoder timed in each. With N the mean forwards per image (of
all images of a decoder, quality images too), an image of mean length takes

    s = prefill + N (decoding seconds / forwards)                        seconds

    y_b   = mean over the block of ln s of the baseline - the same of the decoder
    ln S  = mean(y)
    r     = clip((B r1 + 1) / (B - 4), 0, 0.5), r1 the lag-1 autocorrelation of y
    V     = s_y^2 / B (1 + r) / (1 - r) + s_e^2 / m
    S exp(+- t_df sqrt(V)), df by Satterthwaite of (B - 1, m - 1)

e is a prompt's forwards over their mean, baseline less decoder, over the m prompts that both
decoded; for AR, whose forwards are constant, s_e is the coefficient of variation of the decoder's.
Blocks start a minute apart (`bench.analyse.paired.join_blocks`). Autocorrelation counts because
moments of a machine last about as long. Where they last five minutes, a run of ten minutes sees two
or three: its interval is of this run. Replicates give the machine's (`metrics.replicates`). The
interval is symmetric in the logarithm. Below `FEWEST_BLOCKS` blocks there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from metrics import MetricError
from metrics.stats import LEVEL, Interval, t_pvalue, t_quantile

FEWEST_BLOCKS = 10  # blocks; fewer say too little of how blocks differ
MOST_CORRELATION = 0.5  # ten blocks cannot tell a higher one from chance


@dataclass(frozen=True)
class Timings:
    """Timed images of one decoder in one run, n of them: the block of each [n], integers that rise
    with time; seconds of its prefill and of its decoding [n]; its target forwards [n].
    forwards_by_prompt: the mean forwards of every image of a prompt, quality images too."""

    block: np.ndarray
    prefill: np.ndarray
    decoding: np.ndarray
    forwards: np.ndarray
    forwards_by_prompt: Mapping[int, float]

    def log_seconds(self, forwards: float) -> dict[int, float]:
        """Block -> mean of the logarithm of the seconds that an image of so many forwards takes."""
        seconds = self.prefill + forwards * self.decoding / self.forwards
        if not (seconds > 0).all():
            raise MetricError(f"expected positive seconds of every image, found {seconds.min():g}")
        numbers, place = np.unique(self.block, return_inverse=True)
        means = np.bincount(place, np.log(seconds)) / np.bincount(place)
        return dict(zip(numbers.tolist(), means.tolist(), strict=True))


@dataclass(frozen=True)
class Speedup:
    """A positive ratio. moments: the variance that moments of the machine give its logarithm, and
    its degrees of freedom, NaN below `FEWEST_BLOCKS`; lengths: e of every prompt; least, greatest:
    the ratio in the block that is worst and best for the decoder."""

    value: float
    moments: tuple[float, float] = (math.nan, math.nan)
    lengths: Mapping[int, float] = field(default_factory=dict)
    blocks: int = 0
    least: float = math.nan
    greatest: float = math.nan

    @property
    def count(self) -> int:
        """The pairs of a contrast: blocks."""
        return self.blocks

    @property
    def errors(self) -> list[tuple[float, float]]:
        """Standard errors of the logarithm, each with its degrees of freedom: the one that reaches
        farthest counts."""
        variance, freedom = satterthwaite(self.moments, self._of_prompts())
        return [(math.sqrt(variance), freedom)]

    @property
    def error(self) -> tuple[float, float]:
        return max(self.errors, key=lambda one: one[0] * t_quantile(one[1]))

    def _of_prompts(self) -> tuple[float, float]:
        """The variance that the choice of prompts gives the logarithm."""
        e = np.array([*self.lengths.values()])
        return (float(e.var(ddof=1)) / len(e), len(e) - 1) if len(e) > 1 else (0.0, math.inf)

    def interval(self, level: float = LEVEL) -> Interval:
        """The interval, symmetric in the logarithm, that misses the truth in a share `level` of
        cases; NaN where the error is not known."""
        reach = math.exp(max(t_quantile(freedom, level) * error for error, freedom in self.errors))
        return Interval(self.value, self.value / reach, self.value * reach)

    @property
    def p(self) -> float:
        """Two-sided, of a ratio of 1 (Student's t); NaN where the error is not known."""
        return max(t_pvalue(math.log(self.value), *error) for error in self.errors)

    def over(self, other: Speedup) -> Speedup:
        """This ratio over that of another run, whose moments are others. Prompts that both decoded
        are paired, so that runs of the same codes differ by their moments alone."""
        shared = self.lengths.keys() & other.lengths.keys()
        lengths = {p: self.lengths[p] - other.lengths[p] for p in shared}
        parts = [self.moments, other.moments]
        parts += [] if len(shared) > 1 else [self._of_prompts(), other._of_prompts()]
        blocks = min(self.blocks, other.blocks)
        return Speedup(self.value / other.value, satterthwaite(*parts), lengths, blocks)


def speedup(baseline: Timings, decoder: Timings) -> Speedup | None:
    """Seconds of the baseline over the decoder's, of two decoders timed in the same blocks. None
    where no block holds both, or no prompt. Raises MetricError on times that are not positive."""
    first, second = baseline.forwards_by_prompt, decoder.forwards_by_prompt
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    forwards = [np.array([each[p] for p in shared], np.float64) for each in (first, second)]
    one, other = (
        side.log_seconds(float(each.mean()))
        for side, each in zip((baseline, decoder), forwards, strict=True)
    )
    y = np.array([one[b] - other[b] for b in sorted(one.keys() & other.keys())])
    if not len(y):
        return None
    value, least, greatest = np.exp([y.mean(), y.min(), y.max()]).tolist()
    e = forwards[0] / forwards[0].mean() - forwards[1] / forwards[1].mean()  # [m]
    enough = len(y) >= FEWEST_BLOCKS and len(shared) > 1
    moments = (variance_of_mean(y), len(y) - 1.0) if enough else (math.nan, math.nan)
    lengths = dict(zip(shared, e.tolist(), strict=True))
    return Speedup(value, moments, lengths, len(y), least, greatest)


def variance_of_mean(y: np.ndarray) -> float:
    """The variance of the mean of a series [B] in time order whose neighbours may be alike:
    s^2 / B (1 + r) / (1 - r), r the lag-1 autocorrelation without its bias."""
    count, off = len(y), y - y.mean()
    total = float((off**2).sum())
    if total == 0:
        return 0.0
    unbiased = (count * float((off[1:] * off[:-1]).sum()) / total + 1) / (count - 4)
    r = min(max(unbiased, 0.0), MOST_CORRELATION)
    return total / (count - 1) / count * (1 + r) / (1 - r)


def satterthwaite(*parts: tuple[float, float]) -> tuple[float, float]:
    """The sum of independent variances, each given with its degrees of freedom, and those of the
    sum (Satterthwaite 1946)."""
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return 0.0, min(freedom for _, freedom in parts)
    return total, total**2 / sum(variance**2 / freedom for variance, freedom in parts)
