"""The linked charts of the page, one set a section, as Vega-Lite descriptions.

The Pareto charts of `bench.report.plots.scatter` come first: speed-up against FID, CLIP score and
output TV. Below them each image's seconds. A click on a decoder, in a chart or in the key, fades
the others in all charts of the section and marks its row in the tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bench.records.run_data import Entry, RunData, as_text
from bench.report.plots.labels import placed
from bench.report.plots.scatter import CLIP, FID, TV, Quality, Scatter, pareto, speed
from bench.report.plots.style import FAINT, MUTED, looks
from metrics.stats import Interval

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
PICK = "pick"  # the page's script listens to it
MEASURES = (FID, CLIP, TV)
SHAPES = {"exact": "circle", "relaxed": "diamond", "broken": "cross", "not judged": "square"}
LOOK: Spec = {
    "font": "system-ui, DejaVu Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": MUTED,
        "tickColor": MUTED,
        "gridColor": "#e8e8e8",
        "tickCount": 6,
        "labelFlush": False,
        "labelLimit": 100,
    },
    "legend": {"orient": "bottom", "columns": 6, "labelLimit": 180, "symbolOpacity": 1},
}
NAMES_INSIDE: Spec = {
    "labelAlign": "left", "labelPadding": -4, "labelOffset": -11, "labelLimit": 0, "ticks": False,
    "domain": False,
}  # fmt: skip
FADED = 0.12
WIDTH, HEIGHT = 380, 270  # pixels of a chart; the page's script makes it as wide as there is room
LINE = 30  # pixels of a decoder's seconds


@dataclass(frozen=True)
class Charts:
    """Charts that are linked with each other, below one heading."""

    title: str
    caption: str
    spec: Spec


def pareto_charts(run: RunData, pages: dict[int, str]) -> list[Charts]:
    """The linked charts of each section that has something to show. pages: prompt index -> the
    address of its page, opened by a click on one of its images' marks."""
    colors = {key: look.color for key, look in looks(run).items()}
    made = []
    for section in run.sections:
        shown = [e for e in section.decoders if not e.failed]
        scatters = [(quality, pareto(section, quality)) for quality in MEASURES]
        panels = [
            _pareto(quality, chart)
            for quality, chart in scatters
            if any(dot.entry is not section.baseline for dot in chart.dots)
        ]
        caption = f"{CAPTION} {CLICKS}" if panels else CLICKS
        seconds = _seconds(shown, pages)
        panels += [_strips(seconds, [e.name for e in shown])] if seconds else []
        if panels:
            key = {entry.name: colors[entry.part_key] for entry in shown}
            rows = [row_of(entry) for entry in shown]
            made.append(Charts(section.title, caption, linked(panels, rows, key, columns=2)))
    return made


CAPTION = (
    "Up is faster; better quality is to the left for FID and TV, to the right for CLIP. Bars: 95 % "
    "intervals (TV has none). Circle: exact; diamond: relaxed; cross: broken. Grey band: AR "
    "under other seeds. Dashed: the Pareto front; quality that chance explains counts as AR's."
)
CLICKS = "A click on a decoder fades the others; a click on a tick of seconds opens its prompt."


def linked(panels: list[Spec], rows: list[Spec], key: dict[str, str], columns: int) -> Spec:
    """Panels over the same rows, in which one click picks a decoder. key: decoder -> colour;
    columns: panels side by side where there is room."""
    used = {row["kind"] for row in rows}
    kinds = [kind for kind in SHAPES if kind in used]
    for panel in panels:
        for layer in panel.get("layer", [panel]):
            encoding = layer["encoding"]
            if "color" in encoding:
                scale = {"domain": list(key), "range": list(key.values())}
                encoding["color"] |= {"field": "decoder", "type": "nominal", "scale": scale}
            if "shape" in encoding:
                scale = {"domain": kinds, "range": [SHAPES[kind] for kind in kinds]}
                encoding["shape"] |= {"field": "kind", "type": "nominal", "scale": scale}
    views = [layer["name"] for p in panels for layer in p.get("layer", [p]) if "name" in layer]
    select = {"type": "point", "fields": ["decoder"], "on": "click", "toggle": "true"}
    pick = {"name": PICK, "select": select, "bind": {"legend": "click"}, "views": views}
    return {
        "$schema": SCHEMA, "config": LOOK, "data": {"values": rows}, "params": [pick],
        "concat": panels, "columns": columns, "spacing": 24, "align": "each",
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }  # fmt: skip


def fading(full: float) -> Spec:
    """Opacity: full, unless another decoder is picked."""
    return {"condition": {"param": PICK, "value": full}, "value": FADED * full}


def plain(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return float(value) if math.isfinite(value) else None


def kind_of(entry: Entry) -> str:
    """The verdict's first word."""
    word = entry.text("exactness").split(" ")[0].rstrip(":,")
    return word if word in SHAPES else "not judged"


def row_of(entry: Entry) -> Spec:
    """Figures of a decoder with their intervals."""
    row: Spec = {"decoder": entry.name, "kind": kind_of(entry), "verdict": entry.text("exactness")}
    row["s/image"], row["MAL"] = plain(entry.number("latency_mean_s")), plain(entry.number("mal"))
    row |= _ends("speedup", speed(entry))
    for quality in MEASURES:
        found = quality.reach(entry)
        if quality is TV:  # which has no interval
            found = Interval(found.value, math.nan, math.nan)
        row |= _ends(quality.column, found)
    return row


def _ends(column: str, found: Interval) -> Spec:
    """A figure and the ends of its interval, in columns of their own."""
    ends = {"": found.value, "_lo": found.lo, "_hi": found.hi}
    return {column + end: plain(value) for end, value in ends.items()}


def axis(field: str, title: str) -> Spec:
    """A position on an axis that need not begin at 0."""
    scale = {"zero": False, "nice": False, "padding": 16}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _pareto(quality: Quality, chart: Scatter) -> Spec:
    """Speed-up against one figure of quality."""
    column, title = quality.column, chart.x_title
    x, y = axis(column, title), axis("speedup", "speed-up over AR")
    bars = {"type": "rule", "strokeWidth": 1.4}
    color: Spec = {"legend": {"title": "decoder"}}
    across = {"x": x | {"field": f"{column}_lo"}, "x2": {"field": f"{column}_hi"}, "y": y}
    upward = {"x": x, "y": y | {"field": "speedup_lo"}, "y2": {"field": "speedup_hi"}}
    sides = [upward] if quality is TV else [across, upward]
    marks: list[Spec] = [
        {"mark": bars, "encoding": place | {"color": {**color}, "opacity": fading(0.6)}}
        for place in sides
    ]
    marks.append(points(f"{column}_points", x, y, tooltip(column, title)))
    known = f"isValid(datum['{column}']) && isValid(datum.speedup)"
    marks = [mark | {"transform": [{"filter": known}]} for mark in marks]
    marks.append(_names(chart, x, y))
    below = [*band("x", x, chart.band), line_at("y", y, 1)]
    best = [{column: value, "speedup": up} for value, up in chart.front]
    if len(best) > 1:
        below.append({
            "mark": {"type": "line", "color": MUTED, "strokeDash": [5, 4], "strokeWidth": 1.2},
            "data": {"values": best}, "encoding": {"x": x, "y": y},
        })  # fmt: skip
    return {"title": f"Speed-up against {quality.name}", "width": WIDTH, "height": HEIGHT,
            "layer": below + marks}  # fmt: skip


def band(side: str, axis: Spec, found: Interval) -> list[Spec]:
    """What AR has under other seeds, along an axis ("x" or "y"); [] where that is not known."""
    if not math.isfinite(found.half_width):
        return []
    ends = {side: axis | {"field": "lo"}, f"{side}2": {"field": "hi"}}
    values = [{"lo": found.lo, "hi": found.hi}]
    mark = {"type": "rect", "color": FAINT, "opacity": 0.6}
    return [{"mark": mark, "data": {"values": values}, "encoding": ends}]


def line_at(side: str, axis: Spec, value: float) -> Spec:
    """A line across the chart."""
    data = {"values": [{axis["field"]: value}]}
    return {"mark": {"type": "rule", "color": MUTED}, "data": data, "encoding": {side: axis}}


def points(name: str, x: Spec, y: Spec, said: list[Spec]) -> Spec:
    """The decoders' marks: colour by decoder, shape by verdict. said: the tooltip."""
    return {
        "name": name,
        "mark": {"type": "point", "filled": True, "size": 110, "stroke": "white",
                 "strokeWidth": 0.8, "cursor": "pointer"},
        "encoding": {"x": x, "y": y, "color": {"legend": {"title": "decoder"}},
                     "shape": {"legend": {"title": "verdict", "columns": 1}}, "opacity": fading(1),
                     "tooltip": said},
    }  # fmt: skip


def _names(chart: Scatter, x: Spec, y: Spec) -> Spec:
    """What the points are called, where there is room."""
    points = {dot.entry.name: (dot.x.value, dot.y.value) for dot in chart.dots}
    across = [side for dot in chart.dots for side in (dot.x.lo, dot.x.hi)]
    across += [side for side in (chart.band.lo, chart.band.hi) if math.isfinite(side)]
    up = [side for dot in chart.dots for side in (dot.y.lo, dot.y.hi)] + [1.0]
    values = [
        {"decoder": name, x["field"]: points[name][0], y["field"]: points[name][1], **side}
        for name, side in placed(points, across, up, (WIDTH, HEIGHT)).items()
    ]
    where = {name: {"expr": f"datum.{name}"} for name in ("align", "dx", "dy")}
    return {
        "data": {"values": values}, "mark": {"type": "text", "fontSize": 10, **where},
        "encoding": {"x": x, "y": y, "text": {"field": "decoder"}, "opacity": fading(0.85)},
    }  # fmt: skip


def tooltip(column: str, title: str) -> list[Spec]:
    """What is said of a point: the verdict, the speed-up, the figure of quality, the costs."""
    named = {"decoder": "decoder", "verdict": "verdict", "speedup": "speed-up"}
    named |= {"speedup_lo": "from", "speedup_hi": "to", column: title.split(",")[0]}
    named |= {"MAL": "codes per forward", "s/image": "s/image"}
    words = ("decoder", "verdict")
    return [
        {"field": field, "title": name} | ({} if field in words else {"format": ".4~g"})
        for field, name in named.items()
    ]


def _seconds(entries: list[Entry], pages: dict[int, str]) -> list[Spec]:
    """Seconds of each timed image: the fastest time of each."""
    return [
        {"decoder": entry.name, "seconds": plain(seconds), "prompt": as_text(prompt),
         "page": pages.get(int(index))}
        for entry in entries
        for seconds, prompt, index in entry.latency_rows()[
            ["seconds_total", "prompt", "prompt_index"]
        ].itertuples(index=False)
    ]  # fmt: skip


def _strips(seconds: list[Spec], names: list[str]) -> Spec:
    """One line a decoder, one tick an image."""
    return {
        "title": "Seconds of each timed image", "width": WIDTH,
        "height": LINE * len(names),
        "name": "seconds_ticks", "data": {"values": seconds},
        "mark": {"type": "tick", "thickness": 2, "size": 14, "cursor": "pointer"},
        "encoding": {
            "x": {"field": "seconds", "type": "quantitative", "title": "seconds per image"},
            "y": {"field": "decoder", "type": "nominal", "sort": names, "title": None,
                  "axis": NAMES_INSIDE},
            "color": {}, "opacity": fading(0.8), "href": {"field": "page"},
            "tooltip": [{"field": "decoder"}, {"field": "prompt"},
                        {"field": "seconds", "format": ".3~g"}],
        },
    }  # fmt: skip
