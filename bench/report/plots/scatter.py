"""Speed-up against quality and against cost: which decoders buy speed, and what they pay for it.

`pareto`: speed-up against FID, CLIP score or output TV, with 95 % intervals, the band in which AR's
own figure moves when only its seed changes, and the Pareto front: no other decoder is both faster
and better. There a figure that the tables mark as noise (≈: inside the band, or of CLIP scores by
their differences to AR's) counts as AR's own. So does any figure of an exact decoder: its images
have AR's distribution, so what tells them apart is chance. Where chance made an exact decoder
better than AR, a relaxed one that is better by no more shows nothing either. `losses`: CLIP score
lost. A relaxed rule may lose no CLIP score and still be far from the target, and the other way
round, so the chart of costs has both (output TV: lemma R of docs/decoders.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.judge.speedup import CLIP_LESS
from bench.records.run_data import Entry, Role, RunData, Section, as_text
from bench.report.notes import unfair_caption
from bench.report.plots.chart import (
    ABOVE,
    GAP,
    MUTED,
    WIDTH,
    Chart,
    Spec,
    axis,
    band,
    colors_of,
    ends,
    layer,
    left_out,
    linked,
    plain,
    points,
    row_of,
    rule_at,
    say,
    tooltip,
)
from bench.report.plots.labels import placed
from metrics.stats import Interval

UNKNOWN = Interval(math.nan, math.nan, math.nan)
HEIGHT = 270  # pixels
TICKS = 30  # pixels of a decoder's seconds


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
MEASURES = (FID, CLIP, TV)


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

    name: str
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
        quality.name,
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


def losses(section: Section) -> Scatter:
    """Speed-up against CLIP loss, an exact decoder's counting as 0."""
    every = [(e, clip_loss(e, section), speed(e)) for e in section.decoders if not e.failed]
    known = [each for each in every if not math.isnan(each[1].value + each[2].value)]
    dots = [Dot(e, x, y, 0.0 if e.exact else x.value) for e, x, y in known]
    title = f"{section.clip_name} lost against AR, lower is better"
    return Scatter("CLIP loss", title, dots, "no decoder has both a speed-up and a CLIP score")


def alone(chart: Scatter) -> bool:
    """Whether no decoder but AR is in the chart."""
    return all(dot.entry.role is Role.BASELINE for dot in chart.dots)


def costs_known(run: RunData) -> bool:
    """Whether any decoder but AR has a speed-up and a cost."""
    return any(not alone(c) for s in run.sections for c in (losses(s), pareto(s, TV)))


FRONT = (
    "On the dashed Pareto front of point estimates three kinds of a figure count as AR's: what AR "
    "might have under another seed, that of an exact decoder, and a better one than AR's that an "
    "exact decoder reached or passed."
)
COSTS = (
    "Up and to the left is better. CLIP lost: AR's CLIP score less the decoder's on the same "
    "prompts, where these were compared, else of the means. Output TV: the mean over recorded "
    "nodes; an exact decoder's is 0. Bars: 95 % intervals. Dashed line: Pareto front of point "
    "estimates, on which an exact decoder's loss counts as 0."
)


def draw_pareto(run: RunData, quality: Quality) -> Chart:
    """One panel a section."""
    name = quality.name
    caption = (
        f"Up and to the {'left' if quality.sign < 0 else 'right'} is better. Bars: 95 % intervals. "
        f"Grey band: AR's {name} under other seeds (reseed band); hollow circle: one such run. "
    )
    caption += FRONT
    for section in run.sections:
        chart = pareto(section, quality)
        drawn = [dot.entry for dot in chart.dots]
        caption += left_out(section, drawn, f"{name} or speed-up not measured")
        paired = quality is CLIP and section.compares_clip
        if drawn and not paired and math.isnan(chart.band.value):
            caption += f" {section.title}: no reseed was run, so nothing counts as noise."
    title = f"Speed-up against {name}"
    caption += unfair_caption(run)
    made = _drawn(run, f"speedup_{quality.column}", title, caption, [lambda s: pareto(s, quality)])
    return replace(made, charted=True)


def draw_costs(run: RunData) -> Chart:
    """Two panels a section."""
    caption = COSTS
    for section in run.sections:
        drawn = [
            dot.entry for chart in (losses(section), pareto(section, TV)) for dot in chart.dots
        ]
        caption += left_out(section, drawn, "no speed-up, or no cost measured")
    title = "Speed-up against its cost: CLIP loss and output TV"
    return _drawn(run, "speedup_cost", title, caption, [losses, lambda s: pareto(s, TV)])


def _drawn(
    run: RunData, name: str, title: str, caption: str, of: Sequence[Callable[[Section], Scatter]]
) -> Chart:
    columns = min(2, len(of) * len(run.sections))
    panels = [
        {"title": section.title, **panel(make(section), (WIDTH - GAP * (columns - 1)) / columns)}
        for section in run.sections
        for make in of
    ]
    return Chart(name, title, caption, linked(panels, colors_of(run), columns))


LINKED = (
    "Up is faster; better quality is to the left for FID and TV, to the right for CLIP. Bars: 95 % "
    "intervals (TV has none). Circle: exact; square: exact as far as sampled; diamond: relaxed; "
    "cross: broken. Grey band: AR under other seeds. Dashed: the Pareto front; quality that chance "
    "explains counts as AR's. A click on a decoder fades the others."
)
CLICKS = " A click on a tick of seconds opens its prompt."


def linked_charts(run: RunData, pages: Sequence[int]) -> list[Chart]:
    """For the page: speed-up against FID, CLIP score and output TV, and each image's seconds, of
    each section. pages: indices of prompts that have a page, which a tick opens."""
    made = []
    for section in run.sections:
        shown = [e for e in section.decoders if not e.failed]
        charts = [pareto(section, quality) for quality in MEASURES]
        width = (WIDTH - GAP) / 2
        panels = [
            {"title": f"Speed-up against {c.name}", **panel(c, width)}
            for c in charts
            if not alone(c)
        ]
        ticks = _seconds(shown, pages)
        panels += [ticks] if ticks else []
        if panels:
            caption = LINKED + (CLICKS if ticks and pages else "")
            spec = linked(panels, colors_of(run), columns=2)
            made.append(Chart("linked", section.title, caption, spec))
    return made


def panel(chart: Scatter, width: float) -> Spec:
    """Speed-up against one figure; width: in pixels, for the names of points."""
    if not chart.dots:
        return say(chart.absent)
    x, y = axis("x", chart.x_title), axis("speedup", "speed-up over AR")
    rows = [row_of(d.entry) | ends("x", d.x) | ends("speedup", d.y) for d in chart.dots]
    bar = {"type": "rule", "strokeWidth": 1.4}
    layers = [*band("x", x, chart.band), rule_at("y", y, 1)]
    if len(chart.front) > 1:
        line = {"type": "line", "color": MUTED, "strokeDash": [5, 4], "strokeWidth": 1.2}
        layers.append(layer(line, [{"x": at, "speedup": up} for at, up in chart.front], x=x, y=y))
    hollow = {"type": "point", "color": MUTED, "fill": "white", "size": 45}
    if math.isfinite(chart.band.value):
        layers.append(layer(hollow, [{"x": v, "speedup": 1} for v in chart.reseeds], x=x, y=y))
    layers += [
        layer(bar, rows, 0.6, x=x | {"field": "x_lo"}, x2={"field": "x_hi"}, y=y, color={}),
        layer(bar, rows, 0.6, x=x, y=y | {"field": "speedup_lo"}, y2={"field": "speedup_hi"},
              color={}),
    ]  # fmt: skip
    said = {"decoder": "decoder", "verdict": "verdict", "speedup": "speed-up"}
    said |= {"speedup_lo": "from", "speedup_hi": "to", "x": chart.name}
    said |= {"codes": "codes per forward", "s/image": "s/image"}
    layers += [points(rows, x, y, tooltip(**said)), named(chart, x, y, width)]
    return {"height": HEIGHT, "layer": layers}


def named(chart: Scatter, x: Spec, y: Spec, width: float) -> Spec:
    """What the points are called, where there is room."""
    points = {dot.entry.name: (dot.x.value, dot.y.value) for dot in chart.dots}
    across = [side for dot in chart.dots for side in (dot.x.lo, dot.x.hi)]
    across += [side for side in (chart.band.lo, chart.band.hi) if math.isfinite(side)]
    up = [side for dot in chart.dots for side in (dot.y.lo, dot.y.hi)] + [1.0]
    rows = [
        {"decoder": name, "x": points[name][0], "speedup": points[name][1], **side}
        for name, side in placed(points, across, up, (width, HEIGHT)).items()
    ]
    return layer(names_mark(), rows, 0.85, x=x, y=y, text={"field": "decoder"})


def names_mark() -> Spec:
    """Text at the places that `placed` found."""
    where = {name: {"expr": f"datum.{name}"} for name in ("align", "dx", "dy")}
    return {"type": "text", "fontSize": 10.5, **where}


def _seconds(entries: list[Entry], pages: Sequence[int]) -> Spec:
    """Seconds of each timed image, the fastest time of each: a line per decoder, a tick per image;
    {} where none was timed."""
    rows = [
        {"decoder": entry.name, "seconds": plain(seconds), "prompt": as_text(prompt),
         "page": f"prompts/{index}.html" if index in pages else None}
        for entry in entries
        for seconds, prompt, index in entry.latency_rows()[
            ["seconds_total", "prompt", "prompt_index"]
        ].itertuples(index=False)
    ]  # fmt: skip
    if not rows:
        return {}
    mark = {"type": "tick", "thickness": 2, "size": 14, "cursor": "pointer"}
    place = {"field": "decoder", "type": "nominal", "sort": [e.name for e in entries],
             "title": None, "axis": ABOVE | {"labelOffset": -11}}  # fmt: skip
    x = {"field": "seconds", "type": "quantitative", "title": "seconds per image"}
    said = tooltip(decoder="decoder", prompt="prompt", seconds="seconds")
    made = layer(mark, rows, 0.8, x=x, y=place, color={}, href={"field": "page"}, tooltip=said)
    return {"title": "Seconds of each timed image", "height": TICKS * len(entries), **made}
