"""Speed-up against FID: which decoders buy speed at no cost in quality.

Both 95 % intervals, the Pareto front (no other decoder is both faster and lower in FID) and the
band in which AR's own FID moves when only its seed changes.
"""

from __future__ import annotations

import math
from itertools import pairwise

import matplotlib
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from bench.report.model import Entry, Role, Run, Section
from bench.report.plots.labels import Label, place
from bench.report.plots.style import (  # fmt: skip
    FAINT,
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
from bench.report.roofline import unfair_caption

TITLE = "Speed-up against FID"


def draw(run: Run) -> Plot:
    """One panel a section."""
    caption = (
        "Up and to the left is better. Bars: 95 % intervals. Dashed line: Pareto front. Grey band: "
        "where AR's FID lies when only its seed changes (reseed floor); hollow "
        "circle: AR with other seeds."
    )
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = square_panels(run, rows=1, panel_inches=4.0)
        labels = []
        for section, (ax,) in zip(run.sections, panels, strict=True):
            drawn = [e for e in section.decoders if _measured(e)]
            labels.append(_panel(ax, section, drawn, styles))
            caption += left_out(section, drawn, "FID or speed-up not measured")
            if drawn and math.isnan(section.reseeded("fid").value):
                caption += f" {section.title}: no reseed floor was run."
        caption += unfair_caption(run)
        plot = finish("speedup_fid", TITLE, caption, figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
        for (ax,), (texts, boxes) in zip(panels, labels, strict=True):
            place(ax, texts, [box.transformed(ax.transData).padded(3) for box in boxes])
    return plot


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(fid, speed-up) pairs that no other pair beats in both, by rising FID."""
    front: list[tuple[float, float]] = []
    for fid, speed in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or speed > front[-1][1]:
            front.append((fid, speed))
    return front


def _measured(entry: Entry) -> bool:
    figures = (entry.number("fid"), entry.number("speedup"))
    return not entry.failed and not any(map(math.isnan, figures))


def _panel(
    ax: Axes, section: Section, drawn: list[Entry], styles: dict[tuple[str, str], Look]
) -> tuple[list[Label], list[Bbox]]:
    """Draws the marks; returns the labels to place and the boxes (data units) to keep free."""
    ax.set_xlabel(f"{section.fid_name}, lower is better")
    ax.set_ylabel("speed-up over AR")
    ax.grid()
    if not drawn:
        say(ax, "no decoder has both a FID and a speed-up")
        ax.set_xticks([])
        ax.set_yticks([])
        return [], []
    _floor(ax, section)
    ax.axhline(1, color=MUTED, lw=0.8)
    front = pareto_front([(e.number("fid"), e.number("speedup")) for e in drawn])
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color=MUTED, lw=1.1, ls="--", zorder=2)
    labels, boxes = [], _along(front)
    for entry in drawn:
        look = styles[entry.part_key]
        x, y = entry.number("fid"), entry.number("speedup")
        x_lo, x_hi = _interval(entry, "fid")
        y_lo, y_hi = _interval(entry, "speedup")
        ax.plot([x_lo, x_hi], [y, y], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        ax.plot([x, x], [y_lo, y_hi], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        ax.plot(x, y, look.marker, color=look.color, ms=6.5, mec="white", mew=0.8, zorder=4)
        boxes += [Bbox([[x_lo, y], [x_hi, y]]), Bbox([[x, y_lo], [x, y_hi]])]
        labels.append(Label(x, y, entry.name, INK))
    ax.margins(x=0.16, y=0.14)
    ax.set_ylim(bottom=min(ax.get_ylim()[0], 0.8))
    return labels, boxes


def _floor(ax: Axes, section: Section) -> None:
    reseeded = section.reseeded("fid")
    if math.isnan(reseeded.value):
        return
    ax.axvspan(reseeded.lo, reseeded.hi, color=FAINT, alpha=0.6, lw=0, zorder=0)
    for floor in section.floors:
        ax.plot(floor.number("fid"), 1, "o", mfc="white", mec=MUTED, ms=5.5, zorder=3)


def _along(front: list[tuple[float, float]], steps: int = 24) -> list[Bbox]:
    """Points along the front's line, as boxes for labels to keep off."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(front):
        for at in range(1, steps):
            x, y = x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps
            boxes.append(Bbox([[x, y], [x, y]]))
    return boxes


def _interval(entry: Entry, column: str) -> tuple[float, float]:
    """The interval, or the point itself where none was computed (AR's speed-up)."""
    value = entry.number(column)
    low, high = entry.number(f"{column}_lo"), entry.number(f"{column}_hi")
    if entry.role is Role.BASELINE and column == "speedup":
        return value, value
    return (value if math.isnan(low) else low), (value if math.isnan(high) else high)
