"""Images a second, and the speed-up over the baseline, against the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

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
from bench.scaling.cells import Row
from metrics.stats import Interval

TITLE = "Throughput and speed-up by batch size"


def draw(rows: Sequence[Row], machine: str) -> Plot:
    """Two panels; a cell that failed is named in the caption."""
    ok = [row for row in rows if not row.error]
    names = list(dict.fromkeys(row.decoder for row in rows))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _panel(left, ok, names, "images a second", lambda row: row.images_s)
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        left.yaxis.set_minor_locator(NullLocator())
        fast = [row for row in ok if row.decoder != row.rival]
        _panel(right, fast, names, "speed-up at the same batch", lambda row: row.speedup)
        right.axhline(1.0, color=MUTED, lw=0.8, ls=":")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=6)
        return finish("scaling", TITLE, _caption(rows, machine), figure)


def _panel(
    ax: Axes,
    rows: Sequence[Row],
    names: Sequence[str],
    title: str,
    value: Callable[[Row], Interval],
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
        base = own[0].rival == name
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


def _caption(rows: Sequence[Row], machine: str) -> str:
    failed = [f"{row.decoder} at {row.batch}" for row in rows if row.error]
    left_out = f" Failed and left out: {', '.join(failed)}." if failed else ""
    return (
        f"{machine}. Prefill and decoding of whole batches; bars are 95 % intervals over calls. "
        f"Speed-up: over the baseline at the same batch.{left_out}"
    )
