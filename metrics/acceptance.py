"""Mean accepted length, target forwards per image, acceptance by draft depth, kinds of codes.

Definitions (METHODS section 5), over the steps after the prefill; the code sampled from the prefill
(step 0) belongs to none of them, and codes past the end of the image are not counted:
    MAL           = codes committed / target forwards (correction and bonus codes included; AR: 1)
    MAL, no bonus = accepted drafts / target forwards (AR: 0)
    NFE           = target forwards per image
    rate(d)       = P(accepted >= d | accepted >= d - 1) over steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from decoders.api import CodeKind, Trace
from metrics.errors import MetricError
from metrics.stats import Interval, bootstrap_mean, paired_ratio


@dataclass(frozen=True)
class ImageAcceptance:
    """One image. accepted [S] int: drafts accepted in each step; committed [S] int: codes."""

    accepted: np.ndarray
    committed: np.ndarray
    nfe: int

    @property
    def mal(self) -> float:
        """Codes a target forward; NaN without a forward (an image of one code)."""
        return float(self.committed.sum()) / self.nfe if self.nfe else float("nan")

    @property
    def mal_no_bonus(self) -> float:
        """Accepted drafts a target forward; NaN without a forward."""
        return float(self.accepted.sum()) / self.nfe if self.nfe else float("nan")


@dataclass(frozen=True)
class Acceptance:
    """A run of n images. mal and mal_no_bonus pool the images' codes and forwards."""

    images: int
    mal: Interval
    mal_no_bonus: Interval
    nfe: Interval


@dataclass(frozen=True)
class DepthRate:
    """How often a draft at this depth (1: child of the root) was accepted once its parent was."""

    depth: int
    rate: float
    trials: int


def image_acceptance(accepted: ArrayLike, step: ArrayLike, nfe: int) -> ImageAcceptance:
    """From a row of `Trace`: accepted [S] (-1 past the last step), step [L] of each code, forwards.

    Raises MetricError when a step commits fewer codes than it accepted drafts, or the counts of
    steps disagree.
    """
    drafts = np.asarray(accepted, np.int64)
    drafts = drafts[drafts >= 0]
    steps = np.asarray(step, np.int64)
    last = int(steps.max(initial=0))
    committed = np.bincount(steps, minlength=last + 1)[1:]  # [S]
    if not len(drafts):  # AR records no drafts
        drafts = np.zeros_like(committed)
    if len(drafts) != len(committed) or last != nfe:
        raise MetricError(
            f"{len(drafts)} steps of accepted drafts, codes of {last} steps and {nfe} target "
            "forwards do not fit one image"
        )
    if (committed < np.maximum(drafts, 1)).any():
        raise MetricError("a step committed fewer codes than it accepted drafts, or none")
    return ImageAcceptance(drafts, committed, int(nfe))


def from_trace(trace: Trace) -> list[ImageAcceptance]:
    """One `ImageAcceptance` for each of the B images of a trace."""
    rows = zip(trace.accepted, trace.step, trace.target_calls.tolist(), strict=True)
    return [image_acceptance(a.numpy(), s.numpy(), n) for a, s, n in rows]


def acceptance(images: Sequence[ImageAcceptance], *, seed: int = 0) -> Acceptance:
    """Pooled figures of n >= 2 images with bootstrap intervals over images."""
    forwards = [image.nfe for image in images]
    nfe = bootstrap_mean(forwards, seed=seed)
    mal = paired_ratio([image.committed.sum() for image in images], forwards, seed=seed)
    drafts = paired_ratio([image.accepted.sum() for image in images], forwards, seed=seed)
    return Acceptance(len(images), mal, drafts, nfe)


def by_depth(images: Sequence[ImageAcceptance]) -> list[DepthRate]:
    """rate(d) for every depth that was reached, pooled over steps.

    A node without a child at depth d (the end of a branch of a dynamic tree) counts as a rejection
    there. A step that the image's end cut off (no code after its last draft) is no trial of the
    next depth; at most one step an image.
    """
    drafts = np.concatenate([image.accepted for image in images]) if images else np.zeros(0, int)
    if not drafts.size:
        return []
    cut = np.concatenate([image.committed == image.accepted for image in images])
    rates = []
    for depth in range(1, int(drafts.max()) + 2):
        trials = int(((drafts >= depth - 1) & ~(cut & (drafts == depth - 1))).sum())
        passed = int((drafts >= depth).sum())
        if trials and (passed or depth == 1):
            rates.append(DepthRate(depth, passed / trials, trials))
    return rates


def kind_shares(kind: ArrayLike) -> dict[str, float]:
    """Share of each `CodeKind` (lower-case name) among codes, any shape; MetricError when empty."""
    codes = np.asarray(kind).ravel()
    known = {k.value: k.name.lower() for k in CodeKind}
    if not codes.size or not np.isin(codes, list(known)).all():
        raise MetricError(
            f"expected code kinds {sorted(known)}, found {sorted(set(codes.tolist()))}"
        )
    return {name: float((codes == value).mean()) for value, name in known.items()}
