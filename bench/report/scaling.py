"""Images per second, latency and speed-up by batch size, of a run that timed several sizes.

Why: at batch 1 a decoding step waits for weights and launches, and verifying a tree costs little
more than a code. The larger the batch, the more a step computes, and the longer all wait for the
slowest image; so speculative gains shrink. A speed-up without its batch size says nothing about
serving. Every image of a call has the latency of the call, prefill and decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from bench.config.schedule import BATCHED, LATENCY
from bench.records.run_data import Entry, RunData
from bench.report.plots.style import (
    BASELINE,
    HUES,
    MARKERS,
    MUTED,
    RC,
    WIDTH,
    Plot,
    finish,
    say,
)
from bench.report.table import Column, Table, figures, filled, interval, intervals
from metrics.stats import Interval, bootstrap_mean, paired_ratio

NONE = Interval(math.nan, math.nan, math.nan)
CALL = ["repeat", "call"]


@dataclass(frozen=True)
class Line:
    """A decoder at a batch size. images_s: images per second; speedup: over the baseline at the
    same size; forwards_a_call: of its slowest image; error: what a call raised, and then there are
    no figures."""

    batch: int
    decoder: str
    baseline: str
    error: str
    calls: int = 0
    images_s: Interval = NONE
    latency_s: Interval = NONE
    speedup: Interval = NONE
    mal: float = math.nan
    forwards_a_call: float = math.nan
    peak_memory_mb: float = math.nan


def lines(run: RunData) -> list[Line]:
    """Size by size; [] of a run that timed single images alone."""
    found = [
        _line(batch, entry, section.baseline)
        for section in run.sections
        for entry in section.decoders
        for batch in _timed(entry).batch.unique()
    ]
    return sorted(found, key=lambda x: x.batch) if any(x.batch > 1 for x in found) else []


def _timed(entry: Entry) -> pd.DataFrame:
    """Rows of timed calls that others did not disturb."""
    rows = entry.records
    rows = rows[rows.protocol.isin((LATENCY, BATCHED)) & ~rows.disturbed.astype(bool)]
    return rows.assign(call=rows.prompt_index // rows.batch)


def _line(batch: int, entry: Entry, baseline: Entry | None) -> Line:
    rows, name = _timed(entry).query("batch == @batch"), "" if baseline is None else baseline.name
    failed = rows[rows.status == "failed"]
    if len(failed):
        return Line(int(batch), entry.name, name, str(failed.error.iloc[0]))
    calls = _calls(rows)
    latency = Interval(calls.seconds_total.mean(), math.nan, math.nan)
    if len(calls) > 1:
        latency = bootstrap_mean(calls.seconds_total)
    return Line(
        int(batch),
        entry.name,
        name,
        "",
        calls=len(calls),
        images_s=Interval(*(batch / x for x in (latency.value, latency.hi, latency.lo))),
        latency_s=latency,
        speedup=NONE if baseline is None else _speedup(_timed(baseline), rows),
        mal=float(rows.mal.mean()),
        forwards_a_call=float(calls.nfe.mean()),
        peak_memory_mb=float(calls.peak_memory_mb.max()),
    )


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per call."""
    how = {"seconds_total": "first", "nfe": "max", "peak_memory_mb": "max"}
    return rows.groupby(CALL).agg(how)


def _speedup(baseline: pd.DataFrame, rows: pd.DataFrame) -> Interval:
    """Seconds of the baseline's calls of the same size over the decoder's, paired."""
    baseline = baseline[baseline.batch == rows.batch.iloc[0]]
    both = _calls(baseline).merge(_calls(rows), on=CALL, suffixes=("_0", "_1"))
    if len(both) < 2 or (baseline.status == "failed").any():
        return NONE
    return paired_ratio(both.seconds_total_0, both.seconds_total_1)


def _over(line: Line) -> str:
    own = line.decoder == line.baseline and not line.error
    return "1.00" if own else interval(line.speedup, 2)


COLUMNS = (
    Column("batch", "batch"),
    Column("decoder", "decoder"),
    Column("", "images/s", lambda x: "failed" if x.error else interval(x.images_s, 2)),
    Column("latency_s", "latency, s", intervals(3)),
    Column("", "speed-up at this batch", _over),
    Column("mal", "codes per forward", figures(2)),
    Column("forwards_a_call", "forwards per call", figures(1)),
    Column("peak_memory_mb", "peak MB", figures(0)),
)
LEGEND = (
    "By batch size: [a, b] is a 95 % interval over calls. Latency: seconds of prefill and decoding "
    "until the whole batch is done; images/s: batch over latency. Speed-up: the baseline's seconds "
    "over the decoder's, same batch, same prompts, paired. Codes per forward: mean over images; "
    "forwards per call: those of its slowest image. Peak MB: on a GPU what was allocated during a "
    "call, model included (not known of CUDA graphs); on a CPU resident memory of the process."
)


def scaling_table(found: list[Line]) -> Table:
    """A row per decoder and size."""
    return filled(COLUMNS, found, "By batch size")


def draw(run: RunData) -> Plot:
    """Two panels; a cell that failed is named in the caption."""
    rows = lines(run)
    ok = [row for row in rows if not row.error]
    names = list(dict.fromkeys(row.decoder for row in rows))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _panel(left, ok, names, "images per second", lambda row: row.images_s)
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        left.yaxis.set_minor_locator(NullLocator())
        fast = [row for row in ok if row.decoder != row.baseline]
        _panel(right, fast, names, "speed-up at the same batch", lambda row: row.speedup)
        right.axhline(1.0, color=MUTED, lw=0.8, ls=":")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=6)
        return finish("scaling", "Throughput and speed-up by batch size", _caption(rows), figure)


def _panel(
    ax: Axes,
    rows: Sequence[Line],
    names: Sequence[str],
    title: str,
    value: Callable[[Line], Interval],
) -> None:
    ax.set_title(title)
    ax.set_xlabel("batch size")
    batches = sorted({row.batch for row in rows})
    for at, name in enumerate(names):
        own = sorted((r for r in rows if r.decoder == name), key=lambda row: row.batch)
        own = [row for row in own if value(row).value == value(row).value]
        if not own:
            continue
        found = [value(row) for row in own]
        base = own[0].baseline == name
        ax.errorbar(
            [row.batch for row in own],
            [v.value for v in found],
            yerr=[[v.value - v.lo for v in found], [v.hi - v.value for v in found]],
            label=name, color=BASELINE if base else HUES[(at - 1) % len(HUES)],
            marker=MARKERS[at % len(MARKERS)], ms=5, lw=1.4, capsize=2,
        )  # fmt: skip
    if not ax.containers:
        say(ax, "nothing was measured")
        return
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, [str(batch) for batch in batches])
    ax.minorticks_off()
    ax.grid(axis="y")


def _caption(rows: Sequence[Line]) -> str:
    failed = [f"{row.decoder} at {row.batch}" for row in rows if row.error]
    left_out = f" Failed and left out: {', '.join(failed)}." if failed else ""
    return (
        "Prefill and decoding of whole batches; bars are 95 % intervals over calls. "
        f"Speed-up: over the baseline at the same batch.{left_out}"
    )
