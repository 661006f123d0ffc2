"""Where the time of a run goes: what bounds an AR step, what a forward costs by its codes, and the
seconds of an image by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


def forward_part(line: dict[str, Any]) -> str:
    """Names the target forward of a line: "ar" for an AR step, "forward" for one over a draft."""
    return "forward" if line["codes"] > 1 or line["forward_ms"] > 0 else "ar"


def baseline_name(section: Section) -> str:
    """Of AR, or "" without one."""
    return "" if section.baseline is None else section.baseline.name


def floors(run: Run, roofline: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The steps and forwards of each decoder, in milliseconds, in steps of the baseline, and over
    their floors."""
    lines = {line["decoder"]: line for line in to_dicts(roofline)}
    for section in run.sections:
        base = baseline_name(section)
        ar_ms = float(lines.get(base, {}).get("ar_ms", math.nan))
        for entry in section.decoders:
            if entry.failed or entry.name not in lines:
                continue
            line = lines[entry.name]
            part = forward_part(line)
            yield {
                "decoder": entry.name,
                "codes": line["codes"],
                "step_ms": line["step_ms"],
                "step_ar_steps": line["step_ms"] / ar_ms,
                "step_over_floor": line["step_over_floor"],
                "forward_ms": line[f"{part}_ms"],
                "forward_ar_steps": line[f"{part}_ms"] / ar_ms,
                "forward_floor_ms": line[f"{part}_floor_ms"],
                "forward_over_floor": line[f"{part}_over_floor"],
                "draft_ms": line["draft_ms"],
            }


def forwards(run: Run, floors: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The forwards of a section by their codes, from the table `floors`: of one code the
    baseline's, an AR step. ms: median, the mean of decoders with as many codes; whole: of the step,
    where a backend runs it as one."""
    for section in run.sections:
        names, ar_ms = {entry.name for entry in section.decoders}, math.nan
        base = baseline_name(section)
        timed: dict[tuple[int, bool], list[tuple[str, float]]] = {}
        for line in (line for line in floors if line["decoder"] in names):
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
