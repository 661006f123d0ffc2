"""Mean accepted length (MAL), NFE, TV shift, and what confidences say, from a decoder's trace.

Definitions (docs/results.md, "How each figure is defined"), over the steps after the prefill. The
code sampled from the prefill (step 0) belongs to none of them, and codes past the end of the image
are not counted:
    MAL           = codes committed / target forwards (correction and bonus codes included; AR: 1)
    MAL, no bonus = accepted drafts / target forwards (AR: 0)
    NFE           = target forwards per image

How well a drafter's confidence says which of its drafts are accepted: reliability by depth. A trace
holds the confidence of every draft that was tested, and whether the exact rule accepted it
(`CodeKind.DRAFT`; one that a relaxed rule alone accepted counts as rejected, as the confidence is
of the exact rule). Drafts of one depth are put into bins of equal width by their confidence. The
expected calibration error is the mean over drafts of |mean confidence - accepted share| of their
bin (Guo et al., 1706.04599).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from decoders.api import CodeKind, Trace
from metrics import MetricError

BINS = 10  # of confidences
TESTED = (CodeKind.DRAFT, CodeKind.RELAXED, CodeKind.CORRECTED)


def from_trace(trace: Trace) -> list[dict[str, float]]:
    """Of each of the B images of a trace. Raises MetricError as `image_acceptance`."""
    rows = zip(trace.accepted, trace.step, trace.target_calls.tolist(), strict=True)
    return [image_acceptance(a.numpy(), s.numpy(), n) for a, s, n in rows]


def image_acceptance(accepted: ArrayLike, step: ArrayLike, nfe: int) -> dict[str, float]:
    """`nfe`, `mal` and `mal_no_bonus` of an image, from a row of `Trace`: accepted [S] (-1 past the
    last step), step [L] of each code, forwards. MAL is NaN without a forward (an image of one
    code). Raises MetricError when a step commits fewer codes than it accepted drafts, or the counts
    of steps disagree."""
    drafts = np.asarray(accepted, np.int64)
    drafts = drafts[drafts >= 0]
    steps = np.asarray(step, np.int64)
    last = int(steps.max(initial=0))
    codes = np.bincount(steps, minlength=last + 1)[1:]  # [S]
    if not len(drafts):  # AR records no drafts
        drafts = np.zeros_like(codes)
    if len(drafts) != len(codes) or last != nfe:
        raise MetricError(
            f"{len(drafts)} steps of accepted drafts, codes of {last} steps and {nfe} target "
            "forwards do not fit one image"
        )
    if (codes < np.maximum(drafts, 1)).any():
        raise MetricError("a step committed fewer codes than it accepted drafts, or none")
    mal, mal_no_bonus = (int(x.sum()) / nfe if nfe else math.nan for x in (codes, drafts))
    return {"nfe": int(nfe), "mal": mal, "mal_no_bonus": mal_no_bonus}


def steps_by_depth(accepted: Iterable[ArrayLike], levels: int) -> np.ndarray:
    """[images, levels + 1]: how many steps of an image accepted a draft of depth 0 (all steps), 1,
    ... levels. The last step of an image is left out, as the image's end cuts it. accepted: per
    image the drafts accepted in each step, -1 past the last."""
    rows = [np.asarray(row, np.int64) for row in accepted]
    steps = (row[row >= 0][:-1, None] >= np.arange(levels + 1) for row in rows)
    return np.array([each.sum(0) for each in steps], np.int64).reshape(-1, levels + 1)


def tv_shift_summary(
    tv_shift: ArrayLike, bound: ArrayLike, kind: ArrayLike
) -> tuple[float, float, float]:
    """TV(p, p_A) over positions at which a draft was tested (kind draft, relaxed or corrected): its
    mean, its maximum, and the largest bound declared there. tv_shift, bound, kind: equal shapes, as
    in `Trace`. An AR run has no such position: all zeros; NaN where no position was recorded."""
    if not np.size(kind):
        return math.nan, math.nan, math.nan
    tested = np.isin(np.asarray(kind), TESTED)
    mass, limit = np.asarray(tv_shift, np.float64)[tested], np.asarray(bound, np.float64)[tested]
    if not mass.size:
        return 0.0, 0.0, 0.0
    return float(mass.mean()), float(mass.max()), float(limit.max())


def tested_share(kinds: Iterable[ArrayLike]) -> np.ndarray:
    """[n]: the share of each image's codes at which a draft was tested; kinds: as in `Trace`. The
    others, bonus and first codes, are drawn from the target's own law."""
    each = (np.isin(np.asarray(kind), TESTED) for kind in kinds)
    return np.array([tested.mean() if tested.size else 0.0 for tested in each])


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
