"""Speed-up against what it costs: CLIP score lost, and output TV, the distance of a code's law from
the target's (METHODS2, lemma R). Exact decoders are marked: their TV is 0 and their loss is chance.

A relaxed rule may lose no CLIP score and still be far from the target, and the other way round. So
both are drawn side by side, with the Pareto front of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bench.judge.clip_pairs import FIGURE as CLIP_LESS
from bench.report.model import Entry, Role, Run, Section
from bench.report.plots.labels import Label, place
from bench.report.plots.pareto import pareto_front
from bench.report.plots.style import (  # fmt: skip
    INK,
    MUTED,
    RC,
    Look,
    Plot,
    finish,
    left_out,
    looks,
    say,
    square_panels,
)

TITLE = "Speed-up against its cost: CLIP loss and output TV"
CAPTION = (
    "Up and to the left is better. Left or above: AR's CLIP score less the decoder's on the same "
    "prompts, where these were compared, else of the means. Right or below: output TV, the mean "
    "over recorded nodes; an exact decoder's is 0, and it is hollow. Bars: 95 % intervals. Dashed "
    "line: Pareto front of point estimates, on which an exact decoder's loss counts as 0."
)
Point = tuple[float, float, float]  # a cost and its interval


def shown(run: Run) -> bool:
    """Whether any decoder but AR has a speed-up and a cost."""
    costs = [c(e, s) for s in run.sections for e in _decoders(s) for c in (clip_loss, output_tv)]
    return any(not math.isnan(cost[0]) for cost in costs)


def draw(run: Run) -> Plot:
    """Two panels a section, one below the other."""
    caption = CAPTION
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = square_panels(run, rows=2, panel_inches=3.8)
        labels = []
        for section, axes in zip(run.sections, panels, strict=True):
            drawn: set[str] = set()
            for ax, cost, name in zip(axes, (clip_loss, output_tv), _names(section), strict=True):
                found = _found(section, cost)
                drawn |= {entry.name for entry, _ in found}
                labels.append((ax, _panel(ax, found, styles, name)))
            known = [entry for entry in section.decoders if entry.name in drawn]
            caption += left_out(section, known, "no speed-up, or no cost measured")
        plot = finish("speedup_cost", TITLE, caption, figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
        for ax, texts in labels:
            place(ax, texts, [])
    return plot


def clip_loss(entry: Entry, section: Section) -> Point:
    """AR's CLIP score less the decoder's; of AR itself 0. NaN where it is not known."""
    if entry.role is Role.BASELINE:
        return 0.0, 0.0, 0.0
    paired = entry.number(CLIP_LESS)
    if not math.isnan(paired):
        return -paired, -entry.number(f"{CLIP_LESS}_hi"), -entry.number(f"{CLIP_LESS}_lo")
    base = section.baseline
    loss = math.nan if base is None else base.number("clip") - entry.number("clip")
    return loss, loss, loss


def output_tv(entry: Entry, section: Section) -> Point:
    """Of a code's law; of an exact decoder 0."""
    found = 0.0 if entry.exact else entry.number("tv_output")
    return found, found, found


def _names(section: Section) -> tuple[str, str]:
    return f"{section.clip_name} lost against AR", "output TV per code"


def _decoders(section: Section) -> list[Entry]:
    """All that ran and were timed, but AR."""
    every = [e for e in section.decoders if e.role is Role.DECODER and not e.failed]
    return [e for e in every if not math.isnan(e.number("speedup"))]


def _found(section: Section, cost: Callable[[Entry, Section], Point]) -> list[tuple[Entry, Point]]:
    """Every decoder with the cost, AR first where any other has it."""
    found = [(e, cost(e, section)) for e in _decoders(section)]
    found = [(e, point) for e, point in found if not math.isnan(point[0])]
    base = section.baseline
    if found and base is not None and not base.failed and not math.isnan(base.number("speedup")):
        found.insert(0, (base, cost(base, section)))
    return found


def _panel(
    ax: Axes, found: list[tuple[Entry, Point]], styles: dict[tuple[str, str], Look], name: str
) -> list[Label]:
    """Draws the marks; returns the labels to place."""
    ax.set_xlabel(f"{name}, lower is better")
    ax.set_ylabel("speed-up over AR")
    ax.grid()
    if not found:
        say(ax, "no decoder has both a speed-up and this cost")
        ax.set_xticks([])
        ax.set_yticks([])
        return []
    ax.axhline(1, color=MUTED, lw=0.8)
    ax.axvline(0, color=MUTED, lw=0.8)
    costs = [0.0 if entry.exact else point[0] for entry, point in found]
    speeds = [entry.number("speedup") for entry, _ in found]
    front = pareto_front(list(zip(costs, speeds, strict=True)))
    if len(front) > 1:
        line = [(found[at][1][0], speeds[at]) for at in front]
        ax.plot(*zip(*line, strict=True), color=MUTED, lw=1.1, ls="--", zorder=2)
    labels = []
    for (entry, (x, low, high)), y in zip(found, speeds, strict=True):
        look = styles[entry.part_key]
        ends = entry.number("speedup_lo"), entry.number("speedup_hi")
        ax.plot([low, high], [y, y], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        if entry.role is Role.DECODER:
            ax.plot([x, x], ends, color=look.color, lw=1.3, alpha=0.55, zorder=3)
        face = "white" if entry.exact else look.color
        edge = look.color if entry.exact else "white"
        ax.plot(x, y, look.marker, mfc=face, mec=edge, ms=6.5, mew=1.2, zorder=4)
        labels.append(Label(x, y, entry.name, INK))
    _key(ax)
    ax.margins(x=0.16, y=0.14)
    return labels


def _key(ax: Axes) -> None:
    marks = [
        Line2D([], [], ls="", marker="o", mfc="white", mec=INK, label="exact"),
        Line2D([], [], ls="", marker="o", mfc=INK, mec="white", label="not exact"),
    ]
    ax.legend(handles=marks, loc="best", fontsize=8)
