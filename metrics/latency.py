"""Latency of one image: mean with its interval, median, 95th percentile, shares of the stages.

Why: a speed-up is the paired ratio to AR over the same prompts (METHODS section 5), because
decoders are interleaved prompt by prompt: a slow moment of the machine hits both of a pair, if not
always by the same factor, which is what blocks of prompts are for.
All times are wall-clock seconds, device-synchronised by whoever measured them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metrics.errors import MetricError
from metrics.stats import (
    Interval,
    bootstrap_mean,
    bootstrap_rows,
    bootstrap_statistic,
    paired_ratio,
)


@dataclass(frozen=True)
class Latency:
    """Seconds an image over `count` images."""

    count: int
    mean: Interval
    median: Interval
    p95: float


def latency(seconds: ArrayLike, *, seed: int = 0) -> Latency:
    """Summary of n >= 2 positive times in seconds; MetricError otherwise."""
    data = np.asarray(seconds, np.float64)
    mean = bootstrap_mean(data, seed=seed)
    if data.min() <= 0:
        raise MetricError(f"a latency must be positive, found {data.min():g} s")
    median = bootstrap_statistic(data, lambda rows: np.median(rows, -1), seed=seed)
    return Latency(len(data), mean, median, float(np.quantile(data, 0.95)))


def speedup(
    baseline: Mapping[Hashable, float],
    decoder: Mapping[Hashable, float],
    *,
    seed: int = 0,
) -> Interval:
    """mean(baseline seconds) / mean(decoder seconds) over the keys that both have; > 1 is faster.

    Keys name an image: (prompt index, seed). Raises MetricError for fewer than 2 shared keys.
    """
    shared = [key for key in baseline if key in decoder]
    if len(shared) < 2:
        raise MetricError(
            f"a speed-up needs at least 2 prompts that both decoders ran, found {len(shared)} "
            f"(baseline {len(baseline)}, decoder {len(decoder)})"
        )
    return paired_ratio(
        [baseline[key] for key in shared],
        [decoder[key] for key in shared],
        seed=seed,
    )


@dataclass(frozen=True)
class Steps:
    """Of n images: seconds of prefill and in total, float64 [n]; target forwards [n]."""

    prefill: np.ndarray
    total: np.ndarray
    forwards: np.ndarray

    def quiet(self, rows: np.ndarray) -> np.ndarray:
        """Seconds an image when the machine is quiet: the lower quartiles of prefill and of a
        step's seconds, with the mean number of steps; rows [..., n] -> [...]."""
        step = (self.total - self.prefill) / self.forwards
        first, each = (np.quantile(x[rows], 0.25, axis=-1) for x in (self.prefill, step))
        return first + each * self.forwards[rows].mean(-1)


def quiet_speedup(baseline: Steps, decoder: Steps, *, seed: int = 0) -> Interval:
    """Seconds of the baseline over the decoder's, both as on a quiet machine, on the same n >= 2
    prompts, which are resampled together.

    Neighbours on a machine only ever add time, so lower quartiles of a step are nearer to what it
    takes without them, and move less from run to run than means. Not quartiles of whole images:
    those would pick the images that took few forwards. Raises MetricError on other shapes.
    """
    shapes = {x.shape for one in (baseline, decoder) for x in vars(one).values()}
    if len(shapes) != 1:
        raise MetricError(f"expected figures of the same prompts, found shapes {sorted(shapes)}")
    count = len(baseline.total)
    return bootstrap_rows(count, lambda rows: baseline.quiet(rows) / decoder.quiet(rows), seed=seed)


def breakdown(stages: Mapping[str, ArrayLike], total: ArrayLike) -> dict[str, float]:
    """Mean seconds of each stage over n images, and `other`: what of the total no stage covers.

    Stages of a shape other than the total's are an error; a negative `other` beyond 1 % of the
    total means that stages overlap, and is one too.
    """
    whole = np.asarray(total, np.float64)
    means = {}
    for name, values in stages.items():
        data = np.asarray(values, np.float64)
        if data.shape != whole.shape:
            raise MetricError(f"stage {name!r} has {data.shape} times, the total {whole.shape}")
        means[name] = float(data.mean())
    other = float(whole.mean()) - sum(means.values())
    if not np.isfinite(other):
        raise MetricError("a stage or the total holds NaN or infinity")
    if other < -0.01 * whole.mean():
        raise MetricError(
            f"the stages sum to {sum(means.values()):.4g} s, more than the total "
            f"{whole.mean():.4g} s: they overlap or the total leaves one out"
        )
    return means | {"other": max(other, 0.0)}
