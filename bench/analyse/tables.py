"""Every table of a run, made once. `export` writes some as CSV; a report formats the others.

A table has a column `decoder` or `section`, by which `Run.lines` finds the rows of a section.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from bench.analyse.batches import by_batch
from bench.analyse.breakdown import by_category, by_confidence, by_depth, mass_curves
from bench.analyse.contrast import equal_loss, families, fastest_within
from bench.analyse.figures import cells
from bench.analyse.floors import forwards, phase_seconds
from bench.analyse.paired import latency_rows, timings
from bench.analyse.run import Run

EXPORTED = (
    "summary", "roofline", "fairness", "exactness", "clip_pairs", "depths", "categories", "batches",
    "equal_loss",
)  # fmt: skip


def tables_of(run: Run, **made: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """All tables. made: those of them that are there already: roofline and clip_pairs."""
    exported = [figure.name for figure in run.figures if figure.exported]
    grouped = families(run)
    lines = {
        "summary": [cells({name: e.figures[name] for name in exported}) for e in run.entries],
        "fairness": [vars(one) for one in run.fairness.values()],
        "exactness": [{"decoder": name, **one.line} for name, one in run.gate.items()],
        "depths": by_depth(run),
        "reliability": by_confidence(run),
        "categories": by_category(run),
        "batches": by_batch(run),
        "families": [
            {"section": one.section, "family": one.name, "setting": one.setting, "decoder": e.name}
            for one in grouped
            for e in one.entries
        ],
        "equal_loss": equal_loss(grouped),
        "fastest_within": fastest_within(run),
        "forwards": forwards(run, made["roofline"]),
        "phases": phase_seconds(run),
        "mass": mass_curves(run),
        "blocks": blocks(run),
        "load": load(run),
    }
    return {name: pd.DataFrame([*some]) for name, some in lines.items()} | made


def blocks(run: Run) -> Iterator[dict[str, Any]]:
    """How far the baseline's own time moves from block to block, and of how many blocks the
    speed-ups of a section are. least_s, greatest_s: of a block's mean."""
    for section in run.sections:
        if (base := section.baseline) is None:
            continue
        seconds = base.line.timed.groupby("block")["seconds_total"].mean()
        if len(seconds) > 1:
            others = [e.number("speedup_blocks") for e in section.decoders if e is not base]
            used = [count for count in others if count > 0] or [len(seconds)]
            yield {
                "section": section.title,
                "baseline": base.name,
                "least_s": seconds.min(),
                "greatest_s": seconds.max(),
                "fewest": min(used),
                "most": max(used),
            }


def load(run: Run) -> Iterator[dict[str, Any]]:
    """What other programs took of the cores while images were timed: one row, where there are
    timings. counted: timings that count; share: of the cores, NaN where it is not known."""
    timed = timings(run.rows)
    share = (timed.cpu_others + timed.cpu_steal).dropna()
    if len(timed):
        yield {
            "timings": len(timed),
            "disturbed": int(timed.disturbed.sum()),
            "counted": len(latency_rows(timed)),
            "share_median": share.median(),
            "share_greatest": share.max() if len(share) else math.nan,
        }
