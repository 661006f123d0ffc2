"""What a forward costs by the codes that it is over: measured, and by the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.records.run_data import RunData, Section
from bench.report.plots.chart import (
    HUES,
    INK,
    MUTED,
    WIDTH,
    Chart,
    Spec,
    axis,
    layer,
    left_out,
    linked,
    say,
    tooltip,
)
from bench.report.plots.labels import placed
from bench.report.plots.scatter import names_mark
from bench.report.roofline import Bounds, bounds, forward_part
from bench.report.roofline import figure as number

HEIGHT = 260  # pixels
LINES = {"reading": HUES[0], "arithmetic": HUES[1], "floor": MUTED}


@dataclass(frozen=True)
class Seen:
    """Median milliseconds of the target forwards over `codes` codes, and whose; whole: of the step,
    where a backend runs it as one."""

    codes: int
    ms: float
    names: tuple[str, ...]
    whole: bool = False


def seen(run: RunData, section: Section) -> list[Seen]:
    """A section's forwards by their codes, decoders of as many codes together at their mean."""
    found: dict[tuple[int, bool], list[tuple[str, float]]] = {}
    for entry in section.decoders:
        line = run.roofline.get(entry.name)
        if line is None or entry.failed:
            continue
        part = forward_part(line)
        whole = math.isnan(number(line, f"{part}_ms"))
        ms = number(line, "step_ms" if whole else f"{part}_ms")
        if not math.isnan(ms):
            found.setdefault((int(number(line, "codes")), whole), []).append((entry.name, ms))
    return [
        Seen(codes, float(np.mean([ms for _, ms in mine])), tuple(name for name, _ in mine), whole)
        for (codes, whole), mine in sorted(found.items())
    ]


def takes_over(found: Bounds | None) -> str:
    """At which number of codes arithmetic takes over, in words."""
    if found is None:
        return "no floor is known"
    over = found.takes_over
    if over is None:
        return "arithmetic never takes over"
    if over == 1:
        return "arithmetic binds from the first code on"
    return f"arithmetic takes over at {over} codes"


def draw(run: RunData) -> Chart:
    """A panel a section: milliseconds of a target forward over its codes per row."""
    caption = (
        "Median over the timed images, batch 1; one code is an AR step, more are a verification "
        "(hollow: a whole step, where a backend runs it as one). Lines: the least that reading "
        "(blue) and arithmetic (orange) take on this machine; the floor is the upper of the two. "
    )
    panels, said = [], []
    for section in run.sections:
        points, found = seen(run, section), bounds(run, section)
        said.append(f"{section.title}: {takes_over(found)}.")
        names = {name for point in points for name in point.names}
        drawn = [entry for entry in section.decoders if entry.name in names]
        said.append(left_out(section, drawn, "not timed").strip())
        drawing = _panel(points, found) if points else say("no forward was timed")
        panels.append({"title": section.title, **drawing})
    caption += " ".join(filter(None, said))
    title = "What verifying more codes costs"
    return Chart("verification", title, caption, linked(panels, {}, columns=1))


def _panel(points: Sequence[Seen], found: Bounds | None) -> Spec:
    """Points and lines of a section."""
    widest = max(point.codes for point in points)
    over = None if found is None else found.crossing
    right = max(1.18 * widest, 1.15 * over if over and over < 2 * widest else 0.0, 3.0)
    ar = next((point.ms for point in points if point.codes == 1), math.nan)
    x = axis("codes", "codes per row of a target forward, root included", domain=[0, right])
    y = axis("ms", "ms per target forward", zero=True)
    layers, highest = list[Spec](), max(point.ms for point in points)
    if found is not None:
        rows: list[Spec] = [
            {"codes": float(n), "ms": ms, "line": name}
            for n in np.linspace(0, right, 61)
            for name, ms in _least(found, n).items()
        ]
        highest = max(highest, *(row["ms"] for row in rows))
        scale = {"domain": [*LINES], "range": [*LINES.values()]}
        of = {"field": "line", "type": "nominal", "scale": scale, "legend": {"title": None}}
        whole = {"test": "datum.line === 'floor'", "value": [1, 0]}
        dash = {"condition": whole, "value": [5, 4]}
        layers.append(layer("line", rows, x=x, y=y, color=of, strokeDash=dash))
        if over and 1 < over <= right:
            place, text = {"x": x, "color": {"value": HUES[1]}}, {"value": takes_over(found)}
            where = [{"codes": over}]
            words = {"type": "text", "align": "left", "dx": 5, "fontSize": 10.5}
            layers.append(layer({"type": "rule", "strokeDash": [2, 3]}, where, **place))
            layers.append(layer(words, where, y={"value": 6}, text=text, **place))
    measured: list[Spec] = [
        {"decoder": ", ".join(point.names), "codes": point.codes, "ms": point.ms,
         "AR steps": point.ms / ar if ar > 0 else None, "fill": "white" if point.whole else INK}
        for point in points
    ]  # fmt: skip
    fill = {"field": "fill", "type": "nominal", "scale": None}
    said = tooltip(decoder="decoder", codes="codes", ms="ms", AR__steps="AR steps")
    mark = {"type": "point", "stroke": INK, "size": 60, "opacity": 1}
    layers.append(layer(mark, measured, x=x, y=y, fill=fill, tooltip=said))
    texts = [
        row["decoder"]
        + (f" ({row['AR steps']:.2f} AR steps)" if row["codes"] > 1 and ar > 0 else "")
        for row in measured
    ]
    spots = {text: (row["codes"], row["ms"]) for text, row in zip(texts, measured, strict=True)}
    sides = placed(spots, [0, right], [0, 1.1 * highest], (WIDTH, HEIGHT))
    named = [
        {"codes": spots[text][0], "ms": spots[text][1], "text": text, **side}
        for text, side in sides.items()
    ]
    layers.append(layer(names_mark(), named, x=x, y=y, text={"field": "text"}))
    return {"height": HEIGHT, "layer": layers}


def _least(found: Bounds, codes: float) -> dict[str, float]:
    """Milliseconds that reading and arithmetic take, and their maximum."""
    at = found.growth.at(codes)
    reading, computing = 1e3 * at.reading(found.rates), 1e3 * at.computing(found.rates)
    return {"reading": reading, "arithmetic": computing, "floor": max(reading, computing)}
