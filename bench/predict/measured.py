"""Measuring what a search has chosen, by the runner's own latency protocol, and what it leaves:
tune.csv.

Why the runner: the winner's figure must be one that any study would have found. AR and the chosen
decoders take turns prompt by prompt, warmed up, on prompts that nothing was recorded on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.config.schema import DecoderEntry, StudyConfig
from bench.judge.paired import latency_rows, paired_speedup
from bench.predict.tune import Candidate
from bench.run.runner import run_study
from metrics.stats import Interval

COLUMNS = [
    "decoder", "rule", "tree", "nodes", "depth", "codes_a_step", "seconds_image", "speedup",
    "acceptance", "moved_mean", "output_tv", "bound_max", "eligible", "frontier", "verdict",
    "measured", "measured_lo", "measured_hi", "error",
]  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A decoder's paired speed-up over AR; codes committed a target forward; seconds an image."""

    speedup: Interval
    mal: float
    seconds: float


def measure(
    study: StudyConfig, entries: Sequence[DecoderEntry], folder: Path
) -> dict[str, Measured]:
    """Runs the latency protocol of `study` (AR alone) with `entries` beside AR; by entry's name.

    The rows lie in `folder`/measured/<configuration hash>, so that a search that comes to the same
    choice resumes. Entries that fail are left out. Raises what `run_study` raises.
    """
    config = dataclasses.replace(study, decoders=(*study.decoders, *entries))
    config = dataclasses.replace(config, run_dir=str(folder / "measured" / config.hash))
    rows = run_study(config).rows
    (baseline,) = (e.name for e in study.decoders if e.baseline)
    found = {}
    for entry in entries:
        own = rows[rows.decoder == entry.name]
        ratio = paired_speedup(rows[rows.decoder == baseline], own)
        if ratio is None:
            continue
        mine = latency_rows(own)
        mal = float((mine.mal * mine.nfe).sum() / mine.nfe.sum())
        found[entry.name] = Measured(ratio, mal, float(mine.seconds_total.mean()))
    return found


def table(
    candidates: Sequence[Candidate],
    eligible: Sequence[Candidate],
    front: Sequence[Candidate],
    verdicts: Mapping[str, str],
    measured: Mapping[str, Measured],
) -> pd.DataFrame:
    """One row a candidate, fastest prediction first. error: predicted over measured, less 1."""
    rows = []
    for c in sorted(candidates, key=lambda c: -c.prediction.speedup):
        seen = measured.get(c.name)
        interval = Interval(math.nan, math.nan, math.nan) if seen is None else seen.speedup
        predicted = c.prediction.speedup
        values = (
            c.name, c.rule.label, c.tree.label, c.shape.nodes, c.shape.depth, c.prediction.codes,
            c.prediction.seconds, predicted, "derived" if c.derived else "recorded", c.moved, c.tv,
            c.bound, c in eligible, c in front, verdicts.get(c.name, ""), interval.value,
            interval.lo, interval.hi, predicted / interval.value - 1,
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)
