"""Speed-up against quality and against cost: which decoders buy speed, and what they pay for it.

On the Pareto front no other decoder is both faster and better. There a figure that the tables mark
as noise (≈) counts as AR's own. So does any figure of an exact decoder: its images have AR's
distribution, so what tells them apart is chance. Where chance made an exact decoder better than AR,
a relaxed one that is better by no more shows nothing either. A relaxed rule may lose no CLIP score
and still be far from the target, and the other way round, so the chart of costs has both (output
TV: lemma R of docs/decoders.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.judge.paired import CLIP_LESS, latency_rows
from bench.records.run_data import Entry, Role, RunData, Section, as_text
from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.series import DECODER, names, series
from metrics.stats import Interval

NOTHING = Interval(0.0, 0.0, 0.0)
HEIGHT = 270  # pixels
TICKS = 30  # pixels of a decoder's seconds


@dataclass(frozen=True)
class Quality:
    """A figure of quality, or the speed-up: its column of the summary, its name, and its sign (-1:
    lower is better)."""

    column: str
    name: str
    sign: int

    def label(self, section: Section) -> str:
        """Of its axis in a section."""
        lost = f"{section.clip_name} lost against AR"
        named = {"fid": section.fid_name, "clip": section.clip_name, CLIP_LESS: lost}
        better = {-1: ", lower is better", 0: "", 1: ", higher is better"}
        return named.get(self.column, self.name) + better[self.sign]

    def of(self, entry: Entry) -> float:
        """An entry's figure. AR is at no distance from its own distribution; what an exact decoder
        has of one is rounding."""
        value = entry.number(self.column)
        exact = entry.exact and not math.isnan(value)
        own = self.column == "tv_output" and (entry.role is Role.BASELINE or exact)
        return 0.0 if own else value

    def reach(self, entry: Entry, section: Section) -> Interval:
        """The figure with its interval, the point itself for an end that is not known; alone where
        it has none, as output TV and AR's own speed-up."""
        if self is LOSS:
            return clip_loss(entry, section)
        value = self.of(entry)
        if self is TV or (self is SPEED and entry.role is Role.BASELINE):
            return Interval(value, value, value)
        found = entry.interval(self.column)
        return Interval(value, *(value if math.isnan(end) else end for end in (found.lo, found.hi)))


FID, CLIP = Quality("fid", "FID", -1), Quality("clip", "CLIP", 1)
TV = Quality("tv_output", "output TV", -1)
LOSS = Quality(CLIP_LESS, "CLIP loss", -1)
MEASURES = (FID, CLIP, TV)
SPEED = Quality("speedup", "speed-up over AR", 0)


@dataclass(frozen=True)
class Dot:
    """A decoder's quality and speed-up. cost: of the front, lower is better."""

    entry: Entry
    x: Interval
    y: Interval
    cost: float = math.nan


@dataclass(frozen=True)
class Scatter:
    """A chart of speed-ups. band: AR's figure under other seeds."""

    quality: Quality
    dots: list[Dot]
    band: Interval
    reseeds: list[float]

    @property
    def front(self) -> list[tuple[float, float]]:
        """The points (x, speed-up) of the front, best quality first."""
        best = front([(dot.cost, dot.y.value) for dot in self.dots])
        return [(self.dots[at].x.value, self.dots[at].y.value) for at in best]

    @property
    def alone(self) -> bool:
        """Whether no decoder but AR is in the chart."""
        return all(dot.entry.role is Role.BASELINE for dot in self.dots)


def pareto(section: Section, quality: Quality) -> Scatter:
    """Speed-up against quality, of all decoders that have both."""
    dots = [Dot(e, quality.reach(e, section), SPEED.reach(e, section))
            for e in section.decoders if not e.failed]  # fmt: skip
    dots = [dot for dot in dots if not math.isnan(dot.x.value + dot.y.value)]
    costs = {dot.entry.name: -quality.sign * dot.x.value for dot in dots}
    base, lost = section.baseline, quality is LOSS
    own = math.nan if base is None else -quality.sign * quality.of(base)
    own = luck = 0.0 if lost else own
    if not lost:
        luck = min([own, *(costs[dot.entry.name] for dot in dots if dot.entry.exact)])
    for entry in (dot.entry for dot in dots if not math.isnan(own)):
        noise = entry.exact or (not lost and section.like_ar(entry, quality.column))
        if noise or luck <= costs[entry.name] < own:
            costs[entry.name] = own
    return Scatter(
        quality,
        [replace(dot, cost=costs[dot.entry.name]) for dot in dots],
        vl.UNKNOWN if lost else section.reseeded(quality.column),
        [reseed.number(quality.column) for reseed in section.reseeds],
    )


def clip_loss(entry: Entry, section: Section) -> Interval:
    """AR's CLIP score less the decoder's; of AR itself 0. NaN where it is not known."""
    if entry.role is Role.BASELINE:
        return NOTHING
    paired = entry.interval(CLIP_LESS)
    if not math.isnan(paired.value):
        return Interval(-paired.value, -paired.hi, -paired.lo)
    base = section.baseline
    loss = math.nan if base is None else base.number("clip") - entry.number("clip")
    return Interval(loss, loss, loss)


def costs_known(run: RunData) -> bool:
    """Whether any decoder but AR has a speed-up and a cost."""
    return any(not pareto(s, cost).alone for s in run.sections for cost in (LOSS, TV))


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

    def one(section: Section) -> tuple[list[Spec], str]:
        chart = pareto(section, quality)
        drawn = [dot.entry for dot in chart.dots]
        said = vl.left_out(section, drawn, f"{name} or speed-up not measured")
        paired = quality is CLIP and section.compares_clip
        if drawn and not paired and math.isnan(chart.band.value):
            said += f" {section.title}: no reseed was run, so nothing counts as noise."
        return [panel(chart, section, len(run.sections))], said

    file, title, last = f"speedup_{quality.column}", f"Speed-up against {name}", vl.unfair(run)
    made = vl.by_section(run, file, title, caption + FRONT, one, min(2, len(run.sections)), last)
    return replace(made, charted=True)


def draw_costs(run: RunData) -> Chart:
    """Two panels a section."""

    def one(section: Section) -> tuple[list[Spec], str]:
        charts = [pareto(section, cost) for cost in (LOSS, TV)]
        drawn = [dot.entry for chart in charts for dot in chart.dots]
        said = vl.left_out(section, drawn, "no speed-up, or no cost measured")
        return [panel(chart, section) for chart in charts], said

    title = "Speed-up against its cost: CLIP loss and output TV"
    return vl.by_section(run, "speedup_cost", title, COSTS, one, columns=2)


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
        charts = [pareto(section, quality) for quality in MEASURES]
        panels = [
            {"title": f"Speed-up against {c.quality.name}", **panel(c, section)}
            for c in charts
            if not c.alone
        ]
        ticks = _seconds([e for e in section.decoders if not e.failed], pages)
        panels += [ticks] if ticks else []
        if panels:
            caption = LINKED + (CLICKS if ticks and pages else "")
            spec = vl.linked(panels, vl.colors_of(run), columns=2)
            made.append(Chart("linked", section.title, caption, spec))
    return made


def panel(chart: Scatter, section: Section, columns: int = 2) -> Spec:
    """Speed-up against one figure, in one of at most two columns."""
    if not chart.dots:
        return vl.say(f"no decoder has both {chart.quality.name} and a speed-up")
    x, y = vl.axis("x", chart.quality.label(section)), vl.axis("speedup", "speed-up over AR")
    rows = [vl.row_of(d.entry) | vl.ends("x", d.x) | vl.ends("speedup", d.y) for d in chart.dots]
    layers = [*vl.band("x", x, chart.band), vl.rule_at("y", y, 1)]
    if len(chart.front) > 1:
        line = {"type": "line", "color": vl.MUTED, "strokeDash": [5, 4], "strokeWidth": 1.2}
        front = [{"x": at, "speedup": up} for at, up in chart.front]
        layers.append(vl.layer(line, front, x=x, y=y))
    across = [side for dot in chart.dots for side in (dot.x.lo, dot.x.hi)]
    if math.isfinite(chart.band.value):
        hollow = {"type": "point", "color": vl.MUTED, "fill": "white", "size": 45}
        layers.append(vl.layer(hollow, [{"x": v, "speedup": 1} for v in chart.reseeds], x=x, y=y))
        across += [side for side in (chart.band.lo, chart.band.hi) if math.isfinite(side)]
    said = {"decoder": "decoder", "verdict": "verdict", "speedup": "speed-up"}
    said |= {"speedup_lo": "from", "speedup_hi": "to", "x": chart.quality.name}
    said |= {"codes": "codes per forward", "s/image": "s/image"}
    layers += series(rows, DECODER, x=x, y=y, ends="xy", shape={}, tooltip=vl.tooltip(**said))
    up = [side for dot in chart.dots for side in (dot.y.lo, dot.y.hi)]
    size = vl.WIDTH if columns == 1 else (vl.WIDTH - vl.GAP) / 2, HEIGHT
    layers.append(names(rows, x, y, across, [*up, 1.0], size, 0.85))
    return {"height": HEIGHT, "layer": layers}


def _seconds(entries: list[Entry], pages: Sequence[int]) -> Spec:
    """Seconds of each timed image, the fastest time of each: a line per decoder, a tick per image;
    {} where none was timed."""
    rows = [
        {"decoder": entry.name, "seconds": vl.plain(seconds), "prompt": as_text(prompt),
         "page": f"prompts/{index}.html" if index in pages else None}
        for entry in entries
        for seconds, prompt, index in latency_rows(entry.records)[
            ["seconds_total", "prompt", "prompt_index"]
        ].itertuples(index=False)
    ]  # fmt: skip
    if not rows:
        return {}
    mark = {"type": "tick", "thickness": 2, "size": 14, "cursor": "pointer"}
    place = {"field": "decoder", "type": "nominal", "sort": [e.name for e in entries],
             "title": None, "axis": vl.ABOVE | {"labelOffset": -11}}  # fmt: skip
    x = {"field": "seconds", "type": "quantitative", "title": "seconds per image"}
    said = vl.tooltip(decoder="decoder", prompt="prompt", seconds="seconds")
    made = vl.layer(mark, rows, 0.8, x=x, y=place, color={}, href={"field": "page"}, tooltip=said)
    return {"title": "Seconds of each timed image", "height": TICKS * len(entries), **made}


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost to quality, speed) points that no other is at least as good as in both
    and better in one, by rising cost. Of equal points the first one stays."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i))
    kept: list[int] = []
    for i in order:
        if not kept or points[i][1] > points[kept[-1]][1]:
            kept.append(i)
    return kept
