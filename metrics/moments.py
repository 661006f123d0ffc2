"""Mean and covariance of features, in float64, from a stream: what FID needs of a set of images.

Why: a set of any size is two arrays of E and E x E numbers. Sets are joined and taken apart by the
pooled formulas (Chan, Golub and LeVeque 1979), exact but for rounding and stable where sums of
squares are not:
    n = n_a + n_b, m = m_a + d n_b / n, M = M_a + M_b + d d^T n_a n_b / n, d = m_b - m_a.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metrics.errors import MetricError


@dataclass(frozen=True)
class Moments:
    """count n, mean [E] and scatter [E, E] = sum (x - mean)(x - mean)^T, float64."""

    count: int
    mean: np.ndarray
    scatter: np.ndarray

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Of rows [n >= 1, E]."""
        rows = features.double().cpu().numpy()
        mean = rows.mean(0)  # [E]
        centred = rows - mean
        return cls(len(rows), mean, centred.T @ centred)  # [E, E]

    @classmethod
    def stream(cls, batches: Iterable[Tensor]) -> Moments:
        """Of batches [b, E], one held at a time; MetricError without any."""
        found: Moments | None = None
        for batch in batches:
            own = cls.of(batch)
            found = own if found is None else found.joined(own)
        if found is None:
            raise MetricError("no features: mean and covariance need at least one batch")
        return found

    @property
    def covariance(self) -> np.ndarray:
        """Unbiased covariance [E, E]; MetricError below two rows."""
        if self.count < 2:
            raise MetricError(f"{self.count} images are too few: a covariance needs at least 2")
        return self.scatter / (self.count - 1)

    def joined(self, other: Moments) -> Moments:
        """Of both sets together."""
        count = self.count + other.count
        step = other.mean - self.mean
        weight = self.count * other.count / count
        return Moments(
            count,
            self.mean + step * (other.count / count),
            self.scatter + other.scatter + weight * np.outer(step, step),
        )

    def without(self, part: Moments) -> Moments:
        """Of this set less a part of it."""
        count = self.count - part.count
        if count < 1:
            raise MetricError(f"{part.count} of {self.count} images leave none")
        mean = (self.count * self.mean - part.count * part.mean) / count
        step = part.mean - mean
        weight = count * part.count / self.count
        return Moments(count, mean, self.scatter - part.scatter - weight * np.outer(step, step))


def check_features(name: str, rows: Tensor, least: int) -> None:
    """MetricError unless `rows` are [n >= least, E] and finite; `name` says whose they are."""
    if rows.ndim != 2:
        raise MetricError(f"{name} features must be [n, E], found {list(rows.shape)}")
    if len(rows) < least:
        raise MetricError(f"{len(rows)} {name} images are too few: at least {least} are needed")
    if not torch.isfinite(rows).all():
        bad = int((~torch.isfinite(rows).all(1)).sum())
        raise MetricError(f"the features of {bad} {name} images hold NaN or infinity")


def check_widths(generated: int, reference: int) -> None:
    """MetricError unless both sets have the same number of features."""
    if generated != reference:
        raise MetricError(
            f"generated features have {generated} entries, the reference {reference}: they come "
            "from different extractors"
        )
