"""Speed-up against quality and against cost: which decoders buy speed, and what they pay for it.

A `Scatter` says what a chart shows; the pictures are drawn of it here, the page's linked charts in
`bench.report.page.charts`. `pareto`: speed-up against FID, CLIP score or output TV, with 95 %
intervals, the band in which AR's own figure moves when only its seed changes, and the Pareto front:
no other decoder is both faster and better. There a figure that the tables mark as noise (≈: inside
the band, or of CLIP scores by their differences to AR's) counts as AR's own. So does any figure of
an exact decoder: its images have AR's distribution, so what tells them apart is chance. Where
chance made an exact decoder better than AR, a relaxed one that is better by no more shows nothing
either. `costs`: CLIP score lost, and output TV (lemma R of docs/decoders.md). A relaxed rule may
lose no CLIP score and still be far from the target, and the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from bench.judge.paired import CLIP_LESS
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.notes import unfair_caption
from bench.report.plots.labels import Label
from bench.report.plots.style import (
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
from metrics.stats import Interval

UNKNOWN = Interval(math.nan, math.nan, math.nan)


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

    def reach(self, entry: Entry) -> Interval:
        """The figure with its interval; of output TV, which has none, alone."""
        value = self.of(entry)
        return Interval(value, value, value) if self is TV else closed(entry.interval(self.column))


FID, CLIP = Quality("fid", "FID", -1), Quality("clip", "CLIP", 1)
TV = Quality("tv_output", "output TV", -1)


@dataclass(frozen=True)
class Dot:
    """A decoder's place in a chart. cost: of the front, lower is better."""

    entry: Entry
    x: Interval
    y: Interval
    cost: float


@dataclass(frozen=True)
class Scatter:
    """A chart of speed-ups. band: AR's figure under other seeds; absent: said where no dot is."""

    x_title: str
    dots: list[Dot]
    absent: str
    band: Interval = UNKNOWN
    reseeds: list[float] = field(default_factory=list)

    @property
    def front(self) -> list[tuple[float, float]]:
        """The points (x, speed-up) of the front, best quality first."""
        best = pareto_front([(dot.cost, dot.y.value) for dot in self.dots])
        return [(self.dots[at].x.value, self.dots[at].y.value) for at in best]


def closed(found: Interval) -> Interval:
    """The interval, with the point itself for an end that is not known."""
    low, high = (found.value if math.isnan(end) else end for end in (found.lo, found.hi))
    return Interval(found.value, low, high)


def speed(entry: Entry) -> Interval:
    """The speed-up; AR's own has no interval."""
    found = closed(entry.interval("speedup"))
    own = entry.role is Role.BASELINE
    return Interval(found.value, found.value, found.value) if own else found


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost, speed-up) pairs that no other pair beats in both, by rising cost."""
    front: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1])):
        if not front or points[at][1] > points[front[-1]][1]:
            front.append(at)
    return front


def pareto(section: Section, quality: Quality) -> Scatter:
    """Speed-up against quality, of all decoders that have both."""
    every = [(e, quality.reach(e), speed(e)) for e in section.decoders if not e.failed]
    known = [each for each in every if not math.isnan(each[1].value + each[2].value)]
    costs = {e.name: -quality.sign * x.value for e, x, _ in known}
    base = section.baseline
    if base is not None and not math.isnan(quality.of(base)):
        own = -quality.sign * quality.of(base)
        luck = min([own, *(costs[e.name] for e, *_ in known if e.exact)])
        for entry, *_ in known:
            noise = entry.exact or section.like_ar(entry, quality.column)
            if noise or luck <= costs[entry.name] < own:
                costs[entry.name] = own
    return Scatter(
        quality.label(section),
        [Dot(e, x, y, costs[e.name]) for e, x, y in known],
        f"no decoder has both a {quality.name} and a speed-up",
        section.reseeded(quality.column),
        [reseed.number(quality.column) for reseed in section.reseeds],
    )


def clip_loss(entry: Entry, section: Section) -> Interval:
    """AR's CLIP score less the decoder's; of AR itself 0. NaN where it is not known."""
    if entry.role is Role.BASELINE:
        return Interval(0.0, 0.0, 0.0)
    paired = entry.interval(CLIP_LESS)
    if not math.isnan(paired.value):
        return Interval(-paired.value, -paired.hi, -paired.lo)
    base = section.baseline
    loss = math.nan if base is None else base.number("clip") - entry.number("clip")
    return Interval(loss, loss, loss)


def output_tv(entry: Entry, section: Section) -> Interval:
    """Of a code's law; of an exact decoder 0."""
    found = 0.0 if entry.exact else entry.number("tv_output")
    return Interval(found, found, found)


def costs(section: Section) -> tuple[Scatter, Scatter]:
    """Speed-up against CLIP loss and against output TV, an exact decoder's loss counting as 0. AR
    is shown where any other decoder has the cost."""
    base, charts = section.baseline, []
    names = f"{section.clip_name} lost against AR", "output TV per code"
    for name, cost in zip(names, (clip_loss, output_tv), strict=True):
        every = [e for e in section.decoders if not e.failed and e.role is Role.DECODER]
        found = [(e, cost(e, section), speed(e)) for e in every]
        known = [each for each in found if not math.isnan(each[1].value + each[2].value)]
        if known and base is not None and not base.failed and not math.isnan(speed(base).value):
            known.insert(0, (base, cost(base, section), speed(base)))
        dots = [Dot(e, x, y, 0.0 if e.exact else x.value) for e, x, y in known]
        absent = "no decoder has both a speed-up and this cost"
        charts.append(Scatter(f"{name}, lower is better", dots, absent))
    return charts[0], charts[1]


def costs_known(run: RunData) -> bool:
    """Whether any decoder but AR has a speed-up and a cost."""
    return any(chart.dots for section in run.sections for chart in costs(section))


COSTS = (
    "Up and to the left is better. Left or above: AR's CLIP score less the decoder's on the same "
    "prompts, where these were compared, else of the means. Right or below: output TV, the mean "
    "over recorded nodes; an exact decoder's is 0, and it is hollow. Bars: 95 % intervals. Dashed "
    "line: Pareto front of point estimates, on which an exact decoder's loss counts as 0."
)


def draw_fid(run: RunData) -> Plot:
    """Speed-up against FID."""
    return draw_pareto(run, FID)


def draw_clip(run: RunData) -> Plot:
    """Speed-up against CLIP score."""
    return draw_pareto(run, CLIP)


def draw_pareto(run: RunData, quality: Quality) -> Plot:
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
            chart = pareto(section, quality)
            labels.append((ax, *_panel(ax, chart, styles)))
            if chart.dots:
                ax.set_ylim(bottom=min(ax.get_ylim()[0], 0.8))
            drawn = [dot.entry for dot in chart.dots]
            caption += left_out(section, drawn, f"{name} or speed-up not measured")
            paired = quality is CLIP and section.compares_clip
            if drawn and not paired and math.isnan(chart.band.value):
                caption += f" {section.title}: no reseed was run, so nothing counts as noise."
        caption += unfair_caption(run)
        title = f"Speed-up against {name}"
        return finish(f"speedup_{quality.column}", title, caption, figure, labels)


def draw_costs(run: RunData) -> Plot:
    """Two panels a section, one below the other."""
    caption = COSTS
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = square_panels(run, rows=2, panel_inches=3.8)
        labels = []
        for section, axes in zip(run.sections, panels, strict=True):
            charts = costs(section)
            for ax, chart in zip(axes, charts, strict=True):
                texts, _ = _panel(ax, chart, styles, exact_hollow=True)
                labels.append((ax, texts, list[Bbox]()))  # points lie too close to keep lines free
                ax.axvline(0, color=MUTED, lw=0.8)
            drawn = [dot.entry for chart in charts for dot in chart.dots]
            caption += left_out(section, drawn, "no speed-up, or no cost measured")
        title = "Speed-up against its cost: CLIP loss and output TV"
        return finish("speedup_cost", title, caption, figure, labels)


def _panel(
    ax: Axes, chart: Scatter, styles: dict[tuple[str, str], Look], exact_hollow: bool = False
) -> tuple[list[Label], list[Bbox]]:
    """Draws the marks; returns the labels to place and the boxes (data units) to keep free."""
    ax.set_xlabel(chart.x_title)
    ax.set_ylabel("speed-up over AR")
    ax.grid()
    if not chart.dots:
        say(ax, chart.absent)
        ax.set_xticks([])
        ax.set_yticks([])
        return [], []
    if not math.isnan(chart.band.value):
        ax.axvspan(chart.band.lo, chart.band.hi, color=FAINT, alpha=0.6, lw=0, zorder=0)
        for value in chart.reseeds:
            ax.plot(value, 1, "o", mfc="white", mec=MUTED, ms=5.5, zorder=3)
    ax.axhline(1, color=MUTED, lw=0.8)
    if len(chart.front) > 1:
        ax.plot(*zip(*chart.front, strict=True), color=MUTED, lw=1.1, ls="--", zorder=2)
    labels, boxes = [], _along(chart.front)
    for dot in chart.dots:
        look, x, y = styles[dot.entry.part_key], dot.x, dot.y
        ax.plot([x.lo, x.hi], [y.value, y.value], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        ax.plot([x.value, x.value], [y.lo, y.hi], color=look.color, lw=1.3, alpha=0.55, zorder=3)
        colors: dict[str, Any] = {"mfc": look.color, "mec": "white", "mew": 0.8}
        if exact_hollow and dot.entry.exact:
            colors = {"mfc": "white", "mec": look.color, "mew": 1.2}
        ax.plot(x.value, y.value, look.marker, ms=6.5, zorder=4, **colors)
        boxes += [Bbox([[x.lo, y.value], [x.hi, y.value]])]
        boxes += [Bbox([[x.value, y.lo], [x.value, y.hi]])]
        labels.append(Label(x.value, y.value, dot.entry.name, INK))
    if exact_hollow:
        kinds = (("exact", "white", INK), ("not exact", INK, "white"))
        marks = [Line2D([], [], ls="", marker="o", mfc=face, mec=edge, label=name)
                 for name, face, edge in kinds]  # fmt: skip
        ax.legend(handles=marks, loc="best", fontsize=8)
    ax.margins(x=0.16, y=0.14)
    return labels, boxes


def _along(front: list[tuple[float, float]], steps: int = 24) -> list[Bbox]:
    """Points along the front's line, as boxes for labels to keep off."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(front):
        for at in range(1, steps):
            x, y = x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps
            boxes.append(Bbox([[x, y], [x, y]]))
    return boxes
