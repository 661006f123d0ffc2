"""From timings to rows: seconds an image, the paired ratio to our AR, and to the same drafter.

A ratio is mean seconds of a contender over mean seconds of ours on the same prompts, with a 95 %
bootstrap interval over prompts (`metrics.stats.paired_ratio`): above 1, ours is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.peers.lineup import OURS, THEIRS, Mode
from bench.peers.measure import Timing
from bench.report.plain import NONE
from metrics.latency import speedup
from metrics.stats import Interval, bootstrap_mean


@dataclass(frozen=True)
class Row:
    """One contender under one mode. ratio: its seconds over our AR's; same_drafter: over those of
    our decoder that drafts alike (NaN where there is none). compile_seconds: what its first image
    took beyond a usual one."""

    mode: Mode
    name: str
    engine: str
    drafter: str
    baseline: bool
    images: int
    seconds: Interval
    median: float
    ratio: Interval
    same_drafter: Interval
    forwards: float
    compile_seconds: float
    error: str

    @property
    def failed(self) -> bool:
        return bool(self.error)


def rows_of(mode: Mode, timings: Sequence[Timing]) -> list[Row]:
    """The rows of a mode, in the order of its contenders."""
    return [_row(mode, timing, timings) for timing in timings]


def _row(mode: Mode, timing: Timing, every: Sequence[Timing]) -> Row:
    contender = timing.contender
    base = next((t for t in every if t.contender.baseline), None)
    twin = None
    if contender.engine == THEIRS and contender.drafter:
        twin = next((t for t in every if _drafts_alike(t, timing)), None)
    seconds, median = NONE, math.nan
    if not timing.error:
        values = list(timing.seconds.values())
        seconds, median = bootstrap_mean(values), float(np.median(values))
    late = timing.first - median if contender.compiled else math.nan
    return Row(
        mode=mode,
        name=contender.name,
        engine=contender.engine,
        drafter=contender.drafter,
        baseline=contender.baseline,
        images=len(timing.seconds),
        seconds=seconds,
        median=median,
        ratio=_over(timing, base),
        same_drafter=_over(timing, twin),
        forwards=float(np.mean(timing.forwards)) if timing.forwards else math.nan,
        compile_seconds=max(late, 0.0) if math.isfinite(late) else math.nan,
        error=timing.error,
    )


def _drafts_alike(ours: Timing, theirs: Timing) -> bool:
    same = ours.contender.drafter == theirs.contender.drafter
    return ours.contender.engine == OURS and same


def _over(timing: Timing, ours: Timing | None) -> Interval:
    """seconds of `timing` over those of `ours`, paired; NaN where one of them failed."""
    if ours is None or timing.error or ours.error:
        return NONE
    return speedup(timing.seconds, ours.seconds)


@dataclass(frozen=True)
class Headline:
    """What the comparison comes to: `what` is `ratio` times as fast as `over`."""

    what: str
    over: str
    ratio: Interval

    def __str__(self) -> str:
        r = self.ratio
        return f"{self.what} is {r.value:.2f} [{r.lo:.2f}, {r.hi:.2f}] times as fast as {self.over}"


def headlines(rows: Sequence[Row]) -> list[Headline]:
    """Our AR over each plain way to call generate, and ours over theirs on the same drafter."""
    theirs = [row for row in rows if row.engine == THEIRS and not row.failed]
    found = []
    for row in theirs:
        where = f"{row.name} ({words(row.mode)})"
        if not row.drafter and math.isfinite(row.ratio.value):
            plain = [r for r in theirs if r.mode == row.mode and not r.drafter]
            if len(plain) > 1 and row is min(plain, key=lambda r: r.seconds.value):
                where += ", the fastest of these"
            found.append(Headline("our AR", where, row.ratio))
        if math.isfinite(row.same_drafter.value):
            text = f"our speculative decoding with the same drafter ({row.drafter})"
            found.append(Headline(text, where, row.same_drafter))
    return found


def words(mode: Mode) -> str:
    """`sampling`, `greedy, guidance 3`."""
    kind = "greedy" if mode.sampling.greedy else "sampling"
    return kind if mode.sampling.cfg == 1 else f"{kind}, guidance {mode.sampling.cfg:g}"
