"""Where the time of a run goes, as tables and figures show it: what bounds an AR step, what a
forward costs by the codes that it is over, the seconds of an image, and speed by batch size.

Why by batch size: the larger the batch, the more a step computes; so speculative gains shrink, and
a speed-up at batch 1 says nothing about serving. Every image of a call has the latency of the call,
prefill and decoding. A call is one batch, in which all wait for the slowest image, or
`latency.requests` images (offline, as MLPerf calls it): the next one takes the row of one that is
done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.paired import latency_rows, paired_speedup
from bench.analyse.run import Entry, Role, Run, Section
from bench.measure.roofline import three_digits
from bench.store.columns import BATCHED, LATENCY
from metrics.speedup import FEWEST_BLOCKS as FEWEST
from metrics.stats import NO_INTERVAL as UNKNOWN
from metrics.stats import Interval, student_mean

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

    def __str__(self) -> str:
        read, computed = (f"{three_digits(ms)} ms" for ms in (self.reading, self.computing))
        if self.crossing > 1:
            return (
                f"AR is bound by memory here: a step needs at least {read} to read and {computed} "
                f"to compute. In a forward over {math.ceil(self.crossing)} codes or more, "
                "computing takes longer than reading."
            )
        return (
            f"AR is bound by arithmetic here: a step needs at least {computed} to compute and "
            f"{read} to read, so a forward over n codes costs about n AR steps."
        )


def bounds(run: Run, section: Section) -> Bounds | None:
    """Reads a section's bounds from its lines of the roofline; None where no floor is known."""
    for line in (run.roofline[e.name] for e in section.decoders if e.name in run.roofline):
        if line["ar_bytes"] > 0 and line["bytes_per_s"] > 0:
            return Bounds(
                1e3 * line["ar_bytes"] / line["bytes_per_s"],
                1e3 * line["ar_operations"] / line["operations_per_s"],
            )
    return None


def ar_step_ms(run: Run, section: Section) -> float:
    """Median milliseconds of the baseline's step; NaN where none was timed."""
    base = "" if section.baseline is None else section.baseline.name
    return float(run.roofline.get(base, {}).get("ar_ms", math.nan))


def forward_part(line: dict[str, Any]) -> str:
    """Names the target forward of a line: "ar" for an AR step, "forward" for one over a draft."""
    return "forward" if line["codes"] > 1 or line["forward_ms"] > 0 else "ar"


@dataclass(frozen=True)
class Forwards:
    """Median milliseconds of the target forwards over `codes` codes, and whose; whole: of the step,
    where a backend runs it as one."""

    codes: int
    ms: float
    names: tuple[str, ...]
    whole: bool = False


def forwards(run: Run, section: Section) -> list[Forwards]:
    """Groups a section's forwards by their codes, at the mean of decoders with as many codes."""
    timed: dict[tuple[int, bool], list[tuple[str, float]]] = {}
    for entry in section.decoders:
        line = run.roofline.get(entry.name)
        if line is None or entry.failed:
            continue
        ms = line[f"{forward_part(line)}_ms"]
        whole = math.isnan(ms)
        ms = line["step_ms"] if whole else ms
        if not math.isnan(ms):
            timed.setdefault((int(line["codes"]), whole), []).append((entry.name, ms))
    return [
        Forwards(codes, fmean(ms for _, ms in pairs), tuple(name for name, _ in pairs), whole)
        for (codes, whole), pairs in sorted(timed.items())
    ]


def phase_seconds(entry: Entry) -> dict[str, float]:
    """Averages the seconds of every phase over the timed images, 0 where not recorded; {} without.
    `other` is what seconds_total holds beyond its four timed parts."""
    rows = latency_rows(entry.rows)
    if rows.empty:
        return {}
    names = ("text", *INSIDE, "total", "vq")
    text, *timed, total, vq = (
        float(np.nan_to_num(rows[f"seconds_{name}"].mean())) for name in names
    )
    other = max(total - sum(timed), 0.0)
    return {"text": text, **dict(zip(INSIDE, timed, strict=True)), "other": other, "VQ decode": vq}


# ---- by batch size ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A decoder at a batch size. images: of a call; images_s: images per second; speedup: over the
    baseline at the same size, whose own is 1; forwards_a_call: of its slowest image; idle: the
    share of row-steps without an image; error: what a call raised, and then there are no
    figures."""

    batch: int
    decoder: str
    error: str
    calls: int = 0
    images_s: Interval = UNKNOWN
    latency_s: Interval = UNKNOWN
    speedup: Interval = UNKNOWN
    images: int = 0
    mal: float = math.nan
    forwards_a_call: float = math.nan
    idle: float = math.nan
    peak_memory_mb: float = math.nan


def lines(run: Run) -> list[Line]:
    """Makes a line per batch size and decoder; [] for a run that timed only single images."""
    out = []
    for section in run.sections:
        base = _timed(run, section.baseline)
        for entry in section.decoders:
            for batch, rows in _timed(run, entry).groupby("batch"):
                out.append(_line(entry, rows, base[base.batch == batch]))
    return sorted(out, key=lambda x: x.batch) if any(x.batch > 1 for x in out) else []


def _timed(run: Run, entry: Entry | None) -> pd.DataFrame:
    """Selects rows of timed calls that others did not disturb, and adds how many images a call has
    and which call they are of."""
    rows = run.rows[:0] if entry is None else entry.rows
    rows = rows[rows.protocol.isin((LATENCY, BATCHED)) & ~rows.disturbed.astype(bool)]
    requests = run.identity.get("config", {}).get("latency", {}).get("requests")
    images = rows.batch.where((rows.batch == 1) | (requests is None), requests).astype(int)
    return rows.assign(images=images, call=rows.prompt_index // images)


def _line(entry: Entry, rows: pd.DataFrame, base: pd.DataFrame) -> Line:
    """Makes a line. rows, base: timed ones of the decoder and its baseline, of one batch size."""
    batch = int(rows.batch.iloc[0])
    failed = rows[rows.status == "failed"]
    if len(failed):
        return Line(batch, entry.name, str(failed.error.iloc[0]))
    calls, images = _calls(rows), int(rows.images.iloc[0])
    latency = Interval(calls.seconds_total.mean(), math.nan, math.nan)
    if len(calls) >= FEWEST:
        latency = student_mean(calls.seconds_total)
    speedup = Interval(1.0, math.nan, math.nan) if entry.role is Role.BASELINE else UNKNOWN
    if entry.role is not Role.BASELINE and len(base) and (base.status != "failed").all():
        ratio = paired_speedup(_calls(base), calls)
        speedup = speedup if ratio is None else ratio.interval()
    return Line(
        batch,
        entry.name,
        "",
        calls=len(calls),
        images_s=Interval(*(images / x for x in (latency.value, latency.hi, latency.lo))),
        latency_s=latency,
        speedup=speedup,
        images=images,
        mal=float(rows.mal.mean()),
        forwards_a_call=float(calls.nfe.mean()),
        idle=float(rows.idle.mean()),
        peak_memory_mb=float(calls.peak_memory_mb.max()),
    )


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """Groups rows into one per call, as of an image that was timed alone."""
    how = {"nfe": "max", "peak_memory_mb": "max"}
    how |= dict.fromkeys(("decoder", "status", "seconds_prefill", "seconds_total"), "first")
    calls = rows.groupby(["block", "call"], as_index=False).agg(how)
    return calls.assign(protocol=LATENCY, disturbed=False, prompt_index=calls["call"])
