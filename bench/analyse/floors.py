"""Where the time of a run goes: what bounds an AR step, what a forward costs by its codes, and the
seconds of an image by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.run import Run, Section, to_dicts

INSIDE = ("prefill", "draft", "forward", "accept")  # what seconds_total covers


@dataclass(frozen=True)
class Bounds:
    """The least milliseconds that an AR step needs for reading and for arithmetic. A forward over n
    codes reads as much, but for some keys and values, and computes n times as much."""

    reading: float
    computing: float

    @property
    def crossing(self) -> float:
        """Codes per forward from which on arithmetic takes longer than reading."""
        return max(1.0, self.reading / self.computing)


def bounds(run: Run, section: Section) -> Bounds | None:
    """A section's bounds, from its lines of the roofline; None where no floor is known."""
    for line in run.lines("roofline", section):
        if line["ar_bytes"] > 0 and line["bytes_per_s"] > 0:
            return Bounds(
                1e3 * line["ar_bytes"] / line["bytes_per_s"],
                1e3 * line["ar_operations"] / line["operations_per_s"],
            )
    return None


def forwards(run: Run, roofline: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The forwards of a section by their codes, from its lines of the roofline: of one code the
    baseline's, an AR step. ms: median, the mean of decoders with as many codes; whole: of the step,
    where a backend runs it as one."""
    for section in run.sections:
        names, ar_ms = {entry.name for entry in section.decoders}, math.nan
        base = "" if section.baseline is None else section.baseline.name
        timed: dict[tuple[int, bool], list[tuple[str, float]]] = {}
        for line in to_dicts(roofline[roofline.decoder.isin(names)]):
            whole = math.isnan(line["forward_ms"])
            ms = line["step_ms" if whole else "forward_ms"]
            if not math.isnan(ms) and (line["codes"] > 1 or line["decoder"] == base):
                timed.setdefault((int(line["codes"]), whole), []).append((line["decoder"], ms))
        for (codes, whole), pairs in sorted(timed.items()):
            ms = fmean(ms for _, ms in pairs)
            ar_ms = ms if codes == 1 else ar_ms
            yield {
                "section": section.title,
                "codes": codes,
                "ms": ms,
                "ar_steps": ms / ar_ms,
                "whole": whole,
                "decoders": [name for name, _ in pairs],
            }


def phase_seconds(run: Run) -> Iterator[dict[str, Any]]:
    """The seconds of every phase over the timed images of each decoder, mean, 0 where not recorded.
    other: what seconds_total holds beyond its four timed parts."""
    for entry in (e for section in run.sections for e in section.decoders):
        rows = entry.line.timed
        if rows.empty or entry.failed:
            continue
        mean = {
            name: float(np.nan_to_num(rows[f"seconds_{name}"].mean()))
            for name in ("text", *INSIDE, "total", "vq")
        }
        other = max(mean["total"] - sum(mean[name] for name in INSIDE), 0.0)
        yield {
            "decoder": entry.name,
            "text": mean["text"],
            **{name: mean[name] for name in INSIDE},
            "other": other,
            "VQ decode": mean["vq"],
        }
