"""Images per second, latency and speed-up by batch size, of a run that timed several sizes.

Why: at batch 1 a decoding step waits for weights and launches, and verifying a tree costs little
more than a code. The larger the batch, the more a step computes; so speculative gains shrink. A
speed-up without its batch size says nothing about serving. Every image of a call has the latency of
the call, prefill and decoding. A call is one batch, in which all wait for the slowest image, or
`latency.requests` images (offline, as MLPerf calls it): the place of one that is done is refilled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from bench.analyse.paired import paired_speedup
from bench.analyse.run_data import Entry, Role, RunData
from bench.report.table import Column, interval, number
from bench.store.columns import BATCHED, LATENCY
from metrics.speedup import FEWEST
from metrics.stats import UNKNOWN, Interval, student_mean


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


def lines(run: RunData) -> list[Line]:
    """Makes a line per batch size and decoder; [] for a run that timed only single images."""
    out = []
    for section in run.sections:
        base = _timed(run, section.baseline)
        for entry in section.decoders:
            for batch, rows in _timed(run, entry).groupby("batch"):
                out.append(_line(entry, rows, base[base.batch == batch]))
    return sorted(out, key=lambda x: x.batch) if any(x.batch > 1 for x in out) else []


def _timed(run: RunData, entry: Entry | None) -> pd.DataFrame:
    """Selects rows of timed calls that others did not disturb, and adds how many images a call has
    and which call they are of."""
    rows = run.records[:0] if entry is None else entry.records
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
    rate = Interval(*(images / x for x in (latency.value, latency.hi, latency.lo)))
    return Line(
        batch,
        entry.name,
        "",
        calls=len(calls),
        images_s=rate,
        latency_s=latency,
        speedup=_speedup(entry, base, calls),
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


def _speedup(entry: Entry, base: pd.DataFrame, calls: pd.DataFrame) -> Interval:
    """Divides seconds of the baseline's calls of the same size by the decoder's."""
    if entry.role is Role.BASELINE:
        return Interval(1.0, math.nan, math.nan)
    if base.empty or (base.status == "failed").any():
        return UNKNOWN
    ratio = paired_speedup(_calls(base), calls)
    return UNKNOWN if ratio is None else ratio.interval()


COLUMNS = (
    Column("batch", lambda x: f"{x.batch}"),
    Column("decoder", lambda x: x.decoder),
    Column("images/s", lambda x: "failed" if x.error else interval(x.images_s, 2)),
    Column("latency, s", lambda x: interval(x.latency_s, 3)),
    Column("speed-up at this batch", lambda x: interval(x.speedup, 2)),
    Column("codes per forward", lambda x: number(x.mal, 2)),
    Column("forwards per call", lambda x: number(x.forwards_a_call, 1)),
    Column("idle, %", lambda x: number(100 * x.idle, 1)),
    Column("peak MB", lambda x: number(x.peak_memory_mb, 0)),
)
LEGEND = (
    f"Means over all calls; [a, b] is a 95 % interval, where {FEWEST} calls or more were timed. "
    "Latency: seconds until all images of a call are done; images/s: images over latency. "
    "Speed-up: the baseline's seconds over the decoder's, same batch, same calls. Forwards per "
    "call: of its slowest image. Idle: share of row-steps in which a row had no image left to "
    "decode."
)
