"""Speed-up against FID, and against CLIP score: which decoders buy speed at no cost in quality.

Both 95 % intervals, the band in which AR's own figure moves when only its seed changes, and the
Pareto front: no other decoder is both faster and better, where a figure that the tables mark as
noise (≈: inside the band, or of CLIP scores by their differences to AR's) counts as AR's own. So
does any figure of an exact decoder: its images have AR's distribution, so what tells them apart is
chance, of which the band holds 95 %. Where chance made an exact decoder better than AR, a relaxed
one that is better by no more shows nothing either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Quality:
    """A figure of quality: its column of the summary, its name, and its sign (-1: lower is
    better)."""

    column: str
    name: str
    sign: int

    def label(self, section: Section) -> str:
        """Of its axis in a section."""
        names = {"fid": section.fid_name, "clip": section.clip_name}
        name = names.get(self.column, self.name)
        return f"{name}, {'lower' if self.sign < 0 else 'higher'} is better"

    def of(self, entry: Entry) -> float:
        """An entry's figure. AR is at no distance from its own distribution; what an exact decoder
        has of one is rounding."""
        value = entry.number(self.column)
        exact = entry.exact and not math.isnan(value)
        own = self.column == "tv_output" and (entry.role is Role.BASELINE or exact)
        return 0.0 if own else value


FID, CLIP = Quality("fid", "FID", -1), Quality("clip", "CLIP", 1)
TV = Quality("tv_output", "output TV", -1)  # on the page only


def draw_fid(run: Run) -> Plot:
    """Speed-up against FID."""
    return draw(run, FID)


def draw_clip(run: Run) -> Plot:
    """Speed-up against CLIP score."""
    return draw(run, CLIP)


def draw(run: Run, quality: Quality) -> Plot:
    """One panel a section."""
    name = quality.name
    caption = (
        f"Up and to the {'left' if quality.sign < 0 else 'right'} is better. Bars: 95 % intervals. "
        f"Grey band: AR's {name} under other seeds (reseed band); hollow circle: one such run. "
        "Dashed line: Pareto front of point estimates, unless one point leads. On it three kinds "
        f"of {name} count as AR's: what AR might have under another seed, that of an exact "
        "decoder, and a better one than AR's that an exact decoder reached or passed."
    )
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = square_panels(run, rows=1, panel_inches=4.0)
        labels = []
        for section, (ax,) in zip(run.sections, panels, strict=True):
            drawn = [e for e in section.decoders if measured(e, quality)]
            labels.append(_panel(ax, section, drawn, styles, quality))
            caption += left_out(section, drawn, f"{name} or speed-up not measured")
            paired = quality is CLIP and section.compares_clip
            if drawn and not paired and math.isnan(section.reseeded(quality.column).value):
                caption += f" {section.title}: no reseed was run, so nothing counts as noise."
        caption += unfair_caption(run)
        plot = finish(f"speedup_{quality.column}", f"Speed-up against {name}", caption, figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
        for (ax,), (texts, boxes) in zip(panels, labels, strict=True):
            place(ax, texts, [box.transformed(ax.transData).padded(3) for box in boxes])
    return plot


def pareto_front(points: list[tuple[float, float]]) -> list[int]:
    """Indices of the (cost, speed-up) pairs that no other pair beats in both, by rising cost."""
    front: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1])):
        if not front or points[at][1] > points[front[-1]][1]:
            front.append(at)
    return front


def front(section: Section, drawn: list[Entry], quality: Quality) -> list[tuple[float, float]]:
    """The points (figure, speed-up) of the front, best quality first."""
    column, base = quality.column, section.baseline
    costs = [-quality.sign * quality.of(entry) for entry in drawn]
    if base is not None and not math.isnan(quality.of(base)):
        own = -quality.sign * quality.of(base)
        luck = min([own, *(c for c, entry in zip(costs, drawn, strict=True) if entry.exact)])
        for at, entry in enumerate(drawn):
            noise = entry.exact or section.like_ar(entry, column)
            if noise or luck <= costs[at] < own:
                costs[at] = own
    best = pareto_front([(c, e.number("speedup")) for c, e in zip(costs, drawn, strict=True)])
    return [(quality.of(drawn[at]), drawn[at].number("speedup")) for at in best]


def measured(entry: Entry, quality: Quality) -> bool:
    figures = (quality.of(entry), entry.number("speedup"))
    return not entry.failed and not any(map(math.isnan, figures))


def _panel(
    ax: Axes,
    section: Section,
    drawn: list[Entry],
    styles: dict[tuple[str, str], Look],
    quality: Quality,
) -> tuple[list[Label], list[Bbox]]:
    """Draws the marks; returns the labels to place and the boxes (data units) to keep free."""
    ax.set_xlabel(quality.label(section))
    ax.set_ylabel("speed-up over AR")
    ax.grid()
    if not drawn:
        say(ax, f"no decoder has both a {quality.name} and a speed-up")
        ax.set_xticks([])
        ax.set_yticks([])
        return [], []
    _reseeds(ax, section, quality.column)
    ax.axhline(1, color=MUTED, lw=0.8)
    line = front(section, drawn, quality)
    if len(line) > 1:
        ax.plot(*zip(*line, strict=True), color=MUTED, lw=1.1, ls="--", zorder=2)
    labels, boxes = [], _along(line)
    for entry in drawn:
        look = styles[entry.part_key]
        x, y = entry.number(quality.column), entry.number("speedup")
        x_lo, x_hi = interval(entry, quality.column)
        y_lo, y_hi = interval(entry, "speedup")
        ax.plot([x_lo, x_hi], [y, y], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        ax.plot([x, x], [y_lo, y_hi], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        ax.plot(x, y, look.marker, color=look.color, ms=6.5, mec="white", mew=0.8, zorder=4)
        boxes += [Bbox([[x_lo, y], [x_hi, y]]), Bbox([[x, y_lo], [x, y_hi]])]
        labels.append(Label(x, y, entry.name, INK))
    ax.margins(x=0.16, y=0.14)
    ax.set_ylim(bottom=min(ax.get_ylim()[0], 0.8))
    return labels, boxes


def _reseeds(ax: Axes, section: Section, column: str) -> None:
    reseeded = section.reseeded(column)
    if math.isnan(reseeded.value):
        return
    ax.axvspan(reseeded.lo, reseeded.hi, color=FAINT, alpha=0.6, lw=0, zorder=0)
    for reseed in section.reseeds:
        ax.plot(reseed.number(column), 1, "o", mfc="white", mec=MUTED, ms=5.5, zorder=3)


def _along(front: list[tuple[float, float]], steps: int = 24) -> list[Bbox]:
    """Points along the front's line, as boxes for labels to keep off."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(front):
        for at in range(1, steps):
            x, y = x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps
            boxes.append(Bbox([[x, y], [x, y]]))
    return boxes


def interval(entry: Entry, column: str) -> tuple[float, float]:
    """The interval, or the point itself where none was computed (AR's speed-up)."""
    value = entry.number(column)
    low, high = entry.number(f"{column}_lo"), entry.number(f"{column}_hi")
    if entry.role is Role.BASELINE and column == "speedup":
        return value, value
    return (value if math.isnan(low) else low), (value if math.isnan(high) else high)
