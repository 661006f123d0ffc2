"""The roofline of a run: the table of time over floor, what bounds a section's forwards, and what a
forward costs by the codes that it is over: measured, and by the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.cost.work import MEMORY, Growth, Known, Work, place_of
from bench.records.run_data import RunData, Section, forward_part
from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.series import WORDS, names
from bench.report.table import ABSENT, Column, Row, Table, figures, number, percent

HEIGHT = 260  # pixels of the chart
LINES = {"reading": vl.HUES[0], "arithmetic": vl.HUES[1], "floor": vl.MUTED}
FORWARD = ("ms", "floor_ms", "over_floor")


def _times(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.1f} x"


COLUMNS = (
    Column("decoder", "decoder"),
    Column("codes", "codes", figures(0)),
    Column("step_ms", "step ms", number),
    Column("step_ar_steps", "step in AR steps", figures(2)),
    Column("step_over_floor", "step over floor", _times),
    Column("forward_ms", "forward ms", number),
    Column("forward_ar_steps", "forward in AR steps", figures(2)),
    Column("forward_floor_ms", "floor ms", number),
    Column("forward_over_floor", "over floor", _times),
    Column("draft_ms", "draft call ms", number),
    Column("draft_over_floor", "draft over floor", _times),
    Column("accept_share", "accept share", percent),
)


@dataclass(frozen=True)
class Bounds:
    """Of the forwards of a section. place: what is read at the rate (memory, a cache)."""

    growth: Growth
    rates: Known
    place: str = MEMORY


def bounds(run: RunData, section: Section) -> Bounds | None:
    """From the section's lines of roofline.csv; None where no floor is known."""
    lines = [run.roofline[e.name] for e in section.decoders if e.name in run.roofline]
    known = [one for one in lines if one["ar_bytes"] > 0 and one["bytes_per_s"] > 0]
    if not known:
        return None
    first = known[0]
    trees = [one for one in known if one["codes"] > 1 and one["forward_bytes"] > 0]
    widest = max(trees, key=lambda one: one["codes"], default=None)
    codes, other = 1.0, None
    if widest is not None:
        codes, other = widest["codes"], _work(widest, "forward")
    rate = first["bytes_per_s"]
    return Bounds(
        Growth.through(_work(first, "ar"), codes, other),
        Known(rate, first["operations_per_s"]),
        place_of(rate, first["large_bytes_per_s"]),
    )


def _work(line: dict[str, Any], part: str) -> Work:
    return Work(line[f"{part}_bytes"], line[f"{part}_operations"])


def roofline_tables(run: RunData) -> list[Table]:
    """One table a section that has a line in roofline.csv."""
    made = []
    for section in run.sections:
        base = "" if section.baseline is None else section.baseline.name
        ar = run.roofline.get(base, {}).get("ar_ms", math.nan)
        rows = []
        for entry in section.decoders:
            if entry.failed or entry.name not in run.roofline:
                continue
            line = run.roofline[entry.name]
            part = forward_part(line)
            own = {f"forward_{n}": line[f"{part}_{n}"] for n in FORWARD}
            own |= {f"{n}_ar_steps": (line | own)[f"{n}_ms"] / ar for n in ("step", "forward")}
            values = line | own | {"decoder": entry.label}
            rows.append(Row([column.cell(values) for column in COLUMNS], entry.role.value))
        if rows:
            made.append(Table(section.title, COLUMNS, rows))
    return made


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
        whole = math.isnan(line[f"{part}_ms"])
        ms = line["step_ms" if whole else f"{part}_ms"]
        if not math.isnan(ms):
            found.setdefault((int(line["codes"]), whole), []).append((entry.name, ms))
    return [
        Seen(codes, fmean(ms for _, ms in mine), tuple(name for name, _ in mine), whole)
        for (codes, whole), mine in sorted(found.items())
    ]


def takes_over(found: Bounds | None) -> str:
    """At which number of codes arithmetic takes over, in words."""
    if found is None:
        return "no floor is known"
    over = found.growth.takes_over(found.rates)  # None: never
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
        "(blue) and arithmetic (orange) take on this machine; the floor is the upper of the two."
    )

    def one(section: Section) -> tuple[list[Spec], str]:
        points, found = seen(run, section), bounds(run, section)
        timed = {name for point in points for name in point.names}
        drawn = [entry for entry in section.decoders if entry.name in timed]
        said = f" {section.title}: {takes_over(found)}." + vl.left_out(section, drawn, "not timed")
        return [_panel(points, found) if points else vl.say("no forward was timed")], said

    return vl.by_section(run, "verification", "What verifying more codes costs", caption, one)


def _panel(points: Sequence[Seen], found: Bounds | None) -> Spec:
    """Points and lines of a section."""
    widest = max(point.codes for point in points)
    over = None if found is None else found.growth.crossing(found.rates)
    right = max(1.18 * widest, 1.15 * over if over and over < 2 * widest else 0.0, 3.0)
    ar = next((point.ms for point in points if point.codes == 1), math.nan)
    x = vl.axis("codes", "codes per row of a target forward, root included", domain=[0, right])
    y = vl.axis("ms", "ms per target forward", zero=True)
    layers, highest = list[Spec](), max(point.ms for point in points)
    if found is not None:
        rows: list[Spec] = [
            {"codes": right * at / 60, "ms": ms, "line": name}
            for at in range(61)
            for name, ms in _least(found, right * at / 60).items()
        ]
        highest = max(highest, *(row["ms"] for row in rows))
        scale = {"domain": [*LINES], "range": [*LINES.values()]}
        of = {"field": "line", "type": "nominal", "scale": scale, "legend": {"title": None}}
        whole = {"test": "datum.line === 'floor'", "value": [1, 0]}
        dash = {"condition": whole, "value": [5, 4]}
        layers.append(vl.layer("line", rows, x=x, y=y, color=of, strokeDash=dash))
        if over and 1 < over <= right:
            place, text = {"x": x, "color": vl.color(vl.HUES[1])}, {"value": takes_over(found)}
            where = [{"codes": over}]
            layers.append(vl.layer({"type": "rule", "strokeDash": [2, 3]}, where, **place))
            layers.append(vl.layer(WORDS | {"dx": 5}, where, y={"value": 6}, text=text, **place))
    measured: list[Spec] = [
        {"decoder": ", ".join(point.names), "codes": point.codes, "ms": point.ms,
         "AR steps": point.ms / ar if ar > 0 else None, "fill": "white" if point.whole else vl.INK}
        for point in points
    ]  # fmt: skip
    fill = {"field": "fill", "type": "nominal", "scale": None}
    said = vl.tooltip(decoder="decoder", codes="codes", ms="ms", AR__steps="AR steps")
    mark = {"type": "point", "stroke": vl.INK, "size": 60, "opacity": 1}
    layers.append(vl.layer(mark, measured, x=x, y=y, fill=fill, tooltip=said))
    named = [
        row | {"decoder": f"{row['decoder']} ({row['AR steps']:.2f} AR steps)"}
        if row["codes"] > 1 and ar > 0
        else row
        for row in measured
    ]
    layers.append(names(named, x, y, [0, right], [0, 1.1 * highest], (vl.WIDTH, HEIGHT)))
    return {"height": HEIGHT, "layer": layers}


def _least(found: Bounds, codes: float) -> dict[str, float]:
    """Milliseconds that reading and arithmetic take, and their maximum."""
    at = found.growth.at(codes)
    reading, computing = 1e3 * at.reading(found.rates), 1e3 * at.computing(found.rates)
    return {"reading": reading, "arithmetic": computing, "floor": max(reading, computing)}
