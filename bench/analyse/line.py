"""What the figures of one line of a table are computed from: the rows of a decoder, or of the
baseline under another seed, with those of its baseline and the scores of its pictures.

A category of prompts is such a line too, and so is a batch size: they go through the same
estimator as the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse import paired
from bench.errors import FolderError
from bench.store.facts import FINDINGS
from metrics.ambiguity import RANKS
from metrics.scores import Score, Scores
from metrics.speedup import Speedup
from metrics.stats import NO_INTERVAL, Interval, student_ratio
from metrics.traces import tested_share, tv_shift_summary


@dataclass(frozen=True, eq=False)
class Line:
    """name: as tables have it; rows: its own; baseline: the rows that its seconds are compared
    with, None where it has none or its speed-up does not count; clip_less: its line of
    `paired.clip_differences`; verdict: of the gate."""

    name: str
    rows: pd.DataFrame
    baseline: pd.DataFrame | None = None
    scores: Scores = field(default_factory=Scores)
    clip_less: Mapping[str, float] = field(default_factory=dict)
    verdict: str = ""

    # ---- time

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The timings that count."""
        return paired.latency_rows(self.rows)

    @property
    def seconds(self) -> np.ndarray:
        """[n] of the timings that count; one NaN where there is none."""
        seconds = self.timed.seconds_total.to_numpy(float)
        return seconds if len(seconds) else np.array([math.nan])

    @cached_property
    def speedup(self) -> Speedup | None:
        """None where it does not count, or the two were not timed in the same blocks."""
        return None if self.baseline is None else paired.paired_speedup(self.baseline, self.rows)

    def of_speedup(self, name: str) -> float:
        return float(getattr(self.speedup, name, math.nan))

    @property
    def peak_memory_mb(self) -> float:
        """Of the first timed block of a run: later ones run beside what quality batches left
        allocated."""
        timed = paired.by_replicate(paired.timings(self.rows)).values()
        first = [one[one.block == one.block.min()] for one in timed]
        alone = pd.concat(first) if first else self.rows[:0]
        return float((alone if len(alone) else self.drawn).peak_memory_mb.max())

    # ---- images

    @cached_property
    def drawn(self) -> pd.DataFrame:
        """The quality images that came out."""
        return paired.drawn(self.rows)

    @cached_property
    def images(self) -> pd.DataFrame:
        """The images that codes per forward and TV are of: those of the quality protocol, the
        timed ones where there is none."""
        return paired.images_once(self.rows)

    @property
    def status(self) -> str:
        """ok, or what failed."""
        failed = self.rows[self.rows.status == "failed"]
        if failed.empty:
            return "ok"
        some = f"{len(failed)} of {len(self.rows)} images failed"
        count = "failed" if len(failed) == len(self.rows) else some
        return f"{count}: {failed.error.iloc[0]}"

    @property
    def codes_per_forward(self) -> Interval:
        return codes_per_forward(self.images)

    def per_forward(self, name: str) -> float:
        """A figure of images per target forward, pooled over them."""
        forwards = self.images.nfe.to_numpy(float)
        return ratio((self.images[name] * forwards).sum(min_count=1), forwards.sum())

    def score(self, name: str) -> Interval:
        return self.scores[name].interval

    def by_prompt(self, name: str) -> dict[int, float]:
        """A score of each picture by the index of its prompt; {} where it is not of pictures.
        Raises FolderError where there are more scores than pictures, or fewer."""
        each = self.scores[name].each
        indices = paired.pictures(self.drawn).prompt_index.astype(int)
        if each and len(each) != len(indices):
            raise FolderError(
                f"{FINDINGS} has {len(each)} scores of {self.name}, which has {len(indices)} "
                "pictures: it belongs to other rows; run the study again: it resumes"
            )
        return dict(zip(indices, each, strict=True)) if each else {}

    def category(self, name: str) -> Line:
        """The line of the prompts of a category. A score that is no mean over pictures is not
        known of a part of them."""
        pictures = paired.pictures(self.drawn)
        inside = (pictures.category == name).tolist()
        figures = dict[str, Score]()
        for key, score in self.scores.figures.items():
            each = [x for x, own in zip(score.each, inside, strict=bool(score.each)) if own]
            if each:
                figures[key] = score.again(each)
        base = self.baseline
        base = None if base is None else base[base.category == name]
        return Line(self.name, self.rows[self.rows.category == name], base, Scores(figures))

    @property
    def clip_difference(self) -> Interval:
        """The mean difference of CLIP scores to the baseline's, prompt by prompt."""
        ends = (self.clip_less.get(paired.CLIP_LESS + end, math.nan) for end in ("", "_lo", "_hi"))
        return Interval(*ends)

    # ---- output TV

    @cached_property
    def tv_shift(self) -> tuple[float, float, float]:
        """TV(p, p_A) at codes: mean, greatest, and the greatest bound declared on it."""
        if self.images.empty:
            return math.nan, math.nan, math.nan
        return tv_shift_summary(
            *(np.concatenate(self.images[name].to_list()) for name in ("tv_shift", "bound", "kind"))
        )

    @cached_property
    def pairs(self) -> np.ndarray:
        """[images]: recorded nodes, at each of which a draft was tested."""
        return self.images.tv_output.map(len).to_numpy(float)

    @cached_property
    def codes(self) -> np.ndarray:
        """[images]: the committed codes that the recorded nodes stand for."""
        share = tested_share(self.images.kind)
        return np.divide(self.pairs, share, out=np.zeros_like(self.pairs), where=share > 0)

    def total(self, name: str) -> np.ndarray:
        """[images]: the sum over recorded nodes."""
        return self.images[name].map(np.sum).to_numpy(float)

    def per_code(self, name: str) -> float:
        return ratio(self.total(name).sum(), self.codes.sum())

    def per_pair(self, name: str) -> float:
        return ratio(self.total(name).sum(), self.pairs.sum())

    @property
    def tv_output(self) -> Interval:
        """Per committed code, with its interval over images: nodes of one are correlated."""
        ends = NO_INTERVAL
        if (self.pairs > 0).sum() > 1:
            ends = student_ratio(self.total("tv_output"), self.codes)
        return Interval(self.per_code("tv_output"), max(ends.lo, 0.0), min(ends.hi, 1.0))

    # ---- ambiguity

    @property
    def alpha(self) -> Interval:
        """What the exact rule accepts of the first child: mean over pairs, interval over images."""
        return share(self.total("alpha"), self.images.alpha.map(len).to_numpy(float))

    def mass(self, of: str, rank: int) -> Interval:
        """The mass of the `rank` likeliest codes. of: target or drafter."""
        return mass(self.images, of, RANKS.index(rank))

    def entropy(self, of: str) -> Interval:
        pairs = self.images.alpha.map(len).to_numpy(float)
        bits = self.images[f"{of}_entropy"].to_numpy(float)
        known = np.isfinite(bits)
        return student_ratio((bits * pairs)[known], pairs[known]) if known.any() else NO_INTERVAL


def codes_per_forward(images: pd.DataFrame) -> Interval:
    """Codes per target forward, pooled over images, with its interval over them."""
    images = images[images.nfe > 0]
    forwards = images.nfe.to_numpy(float)
    if images.empty:
        return NO_INTERVAL
    return student_ratio(images.mal.to_numpy(float) * forwards, forwards)


def ratio(part: float, whole: float) -> float:
    """NaN where nothing was counted."""
    return float(part / whole) if whole else math.nan


def share(parts: np.ndarray, wholes: np.ndarray) -> Interval:
    """The ratio of the sums over images, from 0 to 1, with an interval over those that count."""
    counted = wholes > 0
    if not counted.any():
        return NO_INTERVAL
    found = student_ratio(parts[counted], wholes[counted])
    return Interval(found.value, max(found.lo, 0.0), min(found.hi, 1.0))


def mass(images: pd.DataFrame, of: str, rank: int) -> Interval:
    """The mass of the likeliest codes at recorded pairs, of `RANKS[rank]`. of: target or
    drafter."""
    known: Any = images[images[f"{of}_mass"].map(len) == len(RANKS)]
    pairs = known.alpha.map(len).to_numpy(float)
    return share(np.array([each[rank] for each in known[f"{of}_mass"]]) * pairs, pairs)
