"""How well a drafter's confidence says which of its drafts are accepted: reliability by depth.

A trace holds the confidence of every draft that was tested, and whether the exact rule accepted it
(`CodeKind.DRAFT`; one that a relaxed rule alone accepted counts as rejected, as the confidence is
of the exact rule). Drafts of one depth are put into bins of equal width by their confidence. The
expected calibration error is the mean over drafts of |mean confidence - accepted share| of their
bin (Guo et al., 1706.04599).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from decoders.api import CodeKind
from metrics import MetricError

BINS = 10


class Bin(NamedTuple):
    """Drafts of similar confidence: its mean, the share of them that was accepted, their number."""

    predicted: float
    accepted: float
    drafts: int


@dataclass(frozen=True)
class Reliability:
    """Of the drafts tested at one depth, 1: behind the root. error: expected calibration error;
    bins: those with drafts, by rising confidence."""

    depth: int
    drafts: int
    predicted: float
    accepted: float
    error: float
    bins: tuple[Bin, ...]


def reliability(images: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]]) -> list[Reliability]:
    """By depth; nothing where no draft has a confidence. images: of each `kind`, `step` and
    `confidence` as in `Trace`, [L]; where that is NaN no draft was tested. Raises MetricError
    for a confidence outside 0..1 and for unequal lengths."""
    parts: list[np.ndarray] = []
    for kind, step, confidence in images:
        kinds, steps = np.asarray(kind, np.int64), np.asarray(step, np.int64)
        sure = np.asarray(confidence, np.float64)
        if not kinds.shape == steps.shape == sure.shape or kinds.ndim != 1:
            raise MetricError(
                "kind, step and confidence of an image are lists of equal length, found "
                f"{kinds.shape}, {steps.shape} and {sure.shape}"
            )
        tested = ~np.isnan(sure)
        if not ((sure[tested] >= 0) & (sure[tested] <= 1)).all():
            raise MetricError("a confidence is a probability: expected numbers from 0 to 1")
        # Codes of a step stand side by side: the n-th was the test of a draft of depth n.
        first = np.flatnonzero(np.diff(steps, prepend=-1))
        depth = np.arange(len(steps)) - np.repeat(first, np.diff(first, append=len(steps))) + 1
        accepted = kinds == CodeKind.DRAFT
        parts.append(np.stack([depth, sure, accepted])[:, tested])
    depth, sure, accepted = np.concatenate([np.zeros((3, 0)), *parts], 1)
    levels = np.unique(depth).astype(int)
    return [_of_depth(int(d), sure[depth == d], accepted[depth == d]) for d in levels]


def _of_depth(depth: int, sure: np.ndarray, accepted: np.ndarray) -> Reliability:
    number = np.minimum((sure * BINS).astype(int), BINS - 1)
    groups = [number == n for n in np.unique(number)]
    bins = [Bin(float(sure[g].mean()), float(accepted[g].mean()), int(g.sum())) for g in groups]
    error = sum(b.drafts * abs(b.predicted - b.accepted) for b in bins) / len(sure)
    means = float(sure.mean()), float(accepted.mean())
    return Reliability(depth, len(sure), *means, float(error), tuple(bins))
