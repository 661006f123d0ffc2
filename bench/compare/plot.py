"""Measured and published figures as marks: one panel per figure, one line per decoder.

A black dot with its 95 % interval is ours; coloured marks are published, their shape the paper,
their colour the verdict, hollow where the verdict assumes what the source leaves unstated. Several
marks on a line are published numbers that disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.compare.published import LABELS
from bench.compare.verdicts import Comparison, Result, Verdict, has_interval
from bench.report.plots.style import INK, MARKERS, MUTED, RC, WIDTH, Plot, finish, say

TITLE = "Measured and published"
COLORS = {Verdict.REPRODUCED: "#009E73", Verdict.NOT: "#D55E00", Verdict.APART: "#9a9a9a"}
MOST = 40  # lines of a panel; more are left to the table


def draw(result: Result) -> Plot:
    """The plot `compare`; one that says so where no published row has a measured one."""
    shown = [c for c in result.shown() if c.known]
    panels = _panels(shown, [row.decoder for row in result.run.rows])
    caption = "Black: this run, with its 95 % interval. "
    if result.covered:
        caption += (
            "Coloured: published; hollow: the source leaves a setting unstated and the verdict "
            "assumes it. Several marks on a line: several published numbers."
        )
    else:
        caption += "Grey: published, of other models; nothing here is reproduced or refuted."
    cut = [name for name, lines in panels.items() if len(lines) > MOST]
    if cut:
        caption += f" Only the first {MOST} lines of {', '.join(cut)}; all are in the table."
    with matplotlib.rc_context(RC):
        if not panels:
            figure = Figure(figsize=(WIDTH, 2), layout="constrained")
            ax = figure.subplots()
            ax.set_axis_off()
            say(ax, "No published row has a measured one to compare.")
            return finish("compare", TITLE, caption, figure)
        papers = list(dict.fromkeys(c.row.paper for c in shown))
        marks = dict(zip(papers, cycle(MARKERS[1:]), strict=False))
        counts = [min(len(lines), MOST) for lines in panels.values()]
        height = 0.27 * sum(counts) + 0.85 * len(counts) + 0.9
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = figure.subplots(
            len(counts), 1, squeeze=False, height_ratios=[count + 0.6 for count in counts]
        )
        for (ax,), (name, lines) in zip(grid, panels.items(), strict=True):
            _panel(ax, name, lines, marks)
        _key(figure, marks, shown)
        return finish("compare", TITLE, caption, figure)


def _panels(
    shown: Sequence[Comparison], order: Sequence[str]
) -> dict[str, dict[str, list[Comparison]]]:
    """figure, in the order of LABELS -> decoder, in that of the run -> its comparisons."""
    found: dict[str, dict[str, list[Comparison]]] = {}
    places = list(LABELS)
    for item in sorted(shown, key=lambda item: (places.index(item.metric), item.row.baseline)):
        if item.measured is not None:
            lines = found.setdefault(item.label, {})
            lines.setdefault(item.measured.decoder, []).append(item)
    return {
        name: {decoder: lines[decoder] for decoder in order if decoder in lines}
        for name, lines in found.items()
    }


def _panel(ax: Axes, name: str, lines: dict[str, list[Comparison]], marks: dict[str, str]) -> None:
    decoders = list(lines)[:MOST]
    for at, decoder in enumerate(decoders):
        ours = lines[decoder][0].figure
        if has_interval(ours):
            ax.plot([ours.lo, ours.hi], [at, at], color=INK, lw=1.6, solid_capstyle="butt")
        for item in lines[decoder]:
            color = COLORS[item.verdict]
            face, edge = ("white", color) if item.assumed else (color, "white")
            ax.plot(
                item.published, at, marker=marks[item.row.paper], ms=7.5, mfc=face, mec=edge,
                mew=1.6 if item.assumed else 0.7, ls="",
            )  # fmt: skip
        ax.plot(ours.value, at, marker="o", ms=4.5, color=INK, ls="", zorder=4)
    if name.startswith("speed-up"):
        ax.axvline(1, color=MUTED, lw=0.9, ls=":")
    ax.set_title(name)
    ax.set_yticks(range(len(decoders)), decoders)
    ax.set_ylim(len(decoders) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.xaxis.set_major_locator(MaxNLocator(7))
    _limits(ax)


def _limits(ax: Axes) -> None:
    """Room on both sides, so that marks are not cut."""
    low, high = ax.dataLim.x0, ax.dataLim.x1
    room = 0.06 * (high - low) if high > low else 0.1 * abs(high) or 1.0
    if math.isfinite(low) and math.isfinite(high):
        ax.set_xlim(low - room, high + room)


def _key(figure: Figure, marks: dict[str, str], shown: Sequence[Comparison]) -> None:
    used = [verdict for verdict in Verdict if any(c.verdict is verdict for c in shown)]
    handles: list[Artist] = [
        Line2D([], [], color=INK, marker="o", ms=4.5, lw=1.6, label="this run")
    ]
    handles += [Patch(color=COLORS[verdict], label=str(verdict)) for verdict in used]
    handles += [
        Line2D([], [], color=MUTED, marker=mark, mfc="white", ms=7, ls="", label=paper)
        for paper, mark in marks.items()
    ]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=5, handletextpad=0.4, columnspacing=1.2
    )
