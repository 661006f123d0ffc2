"""Speed by batch size. The larger the batch, the more a step computes; so speculative gains shrink,
and a speed-up at batch 1 says nothing about serving.

Every image of a call has the latency of the call, prefill and decoding. A call is one batch, in
which all wait for the slowest image, or `latency.requests` images (offline, as MLPerf calls it):
the next one takes the row of one that is done. A call counts as a timed image does: by the same
blocks, estimator and marks.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from bench.analyse.figures import Value, cells
from bench.analyse.line import Line, codes_per_forward
from bench.analyse.paired import REPLICATE, busy
from bench.analyse.run import Entry, Run
from bench.store.columns import BATCHED, LATENCY
from metrics.speedup import FEWEST_BLOCKS
from metrics.stats import NO_INTERVAL, Interval, student_mean

OF_A_CALL = {
    "decoder": "first", "status": "first", "seconds_prefill": "first", "seconds_total": "first",
    "disturbed": "first", "cpu_others": "first", "cpu_steal": "first", "nfe": "max",
    "peak_memory_mb": "max",
}  # fmt: skip


def by_batch(run: Run) -> list[dict[str, Any]]:
    """A row per batch size and decoder; [] for a run that timed only single images. images: of a
    call; images_s: images per second; latency_s: of a call; speedup: over the baseline at the same
    size; unmeasured: why it does not count; mal: of this size's images; forwards_per_call: of its
    slowest image; idle_percent: row-steps without an image; error: what a call raised, and then
    there are no figures."""
    rows = []
    for section in run.sections:
        base = pd.DataFrame() if section.baseline is None else timed(run, section.baseline)
        for entry in section.decoders:
            for batch, its in timed(run, entry).groupby("batch"):
                same = base[base.batch == batch] if len(base) else base
                rows.append(_row(run, entry, its, same))
    several = any(row["batch"] > 1 for row in rows)
    return sorted(rows, key=lambda row: row["batch"]) if several else []


def timed(run: Run, entry: Entry) -> pd.DataFrame:
    """The rows of timed calls, with the number of images of a call and the call of each."""
    rows = entry.rows[entry.rows.protocol.isin((LATENCY, BATCHED))]
    requests = run.identity.get("config", {}).get("latency", {}).get("requests")
    images = rows.batch.where((rows.batch == 1) | (requests is None), requests).astype(int)
    return rows.assign(images=images, call=rows.prompt_index // images)


def _row(run: Run, entry: Entry, rows: pd.DataFrame, base: pd.DataFrame) -> dict[str, Any]:
    """A row. rows, base: timed ones of the decoder and its baseline, of one batch size."""
    batch, images = int(rows.batch.iloc[0]), int(rows.images.iloc[0])
    failed = rows[rows.status == "failed"]
    error = str(failed.error.iloc[0]) if len(failed) else ""
    calls = _calls(rows)
    unmeasured = run.fairness[entry.name].reason if run.unmeasured(entry) else busy(calls)
    beside = len(base) > 0 and bool((base.status != "failed").all())
    if beside and not unmeasured:
        unmeasured = busy(_calls(base))
    # A single image is timed as for the main table, whose figures these are.
    line = entry.line
    if batch > 1:
        line = Line(entry.name, calls, _calls(base) if beside and not unmeasured else None)
    seconds, latency = line.timed.seconds_total, NO_INTERVAL
    if len(seconds):
        few = Interval(float(seconds.mean()), math.nan, math.nan)
        latency = student_mean(seconds) if len(seconds) >= FEWEST_BLOCKS else few
    figures: dict[str, Value] = {
        "images_s": Interval(*(images / x for x in (latency.value, latency.hi, latency.lo))),
        "latency_s": latency,
        "speedup": line.speedup.interval() if line.speedup else NO_INTERVAL,
        "mal": line.codes_per_forward if batch == 1 else codes_per_forward(rows),
        "forwards_per_call": float(calls.nfe.mean()),
        "idle_percent": 100 * float(rows.idle.mean()),
        "peak_memory_mb": float(calls.peak_memory_mb.max()),
    }
    if error:
        figures = {
            n: NO_INTERVAL if isinstance(v, Interval) else math.nan for n, v in figures.items()
        }
    head = {"batch": batch, "decoder": entry.name, "error": error, "unmeasured": unmeasured}
    return head | {"calls": 0 if error else len(seconds), "images": images} | cells(figures)


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """Groups rows into one per call, as of an image that was timed alone."""
    kept = OF_A_CALL | ({REPLICATE: "first"} if REPLICATE in rows else {})
    calls = rows.groupby(["block", "call"], as_index=False).agg(kept)
    return calls.assign(protocol=LATENCY, prompt_index=calls["call"])
