"""Bars, one line a decoder and one panel a section and figure: accepted length and speed-up, where
an image's seconds go, time over floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.judge import paired
from bench.records.load import PHASES
from bench.records.run_data import Entry, Role, RunData, Section, forward_part
from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.series import WORDS, between
from metrics.stats import Interval


@dataclass(frozen=True)
class Bar:
    """Parts (width, colour or its name in the key) from left to right, and what is written right of
    them: without parts why there are none. ends: an interval; tick: a white line; pale: the figure
    is noise."""

    parts: Sequence[tuple[float, str]]
    text: str
    ends: Interval = vl.UNKNOWN
    tick: float = math.nan
    pale: bool = False


@dataclass(frozen=True)
class Side:
    """One column of bars. of: a decoder's bar; room: the axis over the longest bar, for the
    figures; reason: names in the caption the decoders that have none; speed: these are speed-ups
    over AR."""

    label: str
    of: Callable[[Section, Entry], Bar]
    room: float
    reason: str = ""
    speed: bool = False


def _draw(
    run: RunData, name: str, title: str, caption: str, sides: Sequence[Side], key: Mapping[str, str]
) -> Chart:
    """key: what colours mean, where they are not the decoders'."""

    def one(section: Section) -> tuple[list[Spec], str]:
        panels, said = list[Spec](), ""
        named: list[Entry] = []  # failed decoders are named once
        for side in sides:
            bars = [(e, Bar([], "failed") if e.failed else side.of(section, e))
                    for e in section.decoders]  # fmt: skip
            panels.append(_panel(bars, side, key))
            drawn = [e for e, bar in bars if bar.parts]
            said += vl.left_out(section, [*drawn, *named], side.reason) if side.reason else ""
            named = [entry for entry in section.decoders if entry.failed]
        return panels, said

    last = vl.unfair(run) if any(side.speed for side in sides) else ""
    return vl.by_section(run, name, title, caption, one, len(sides), last)


def _panel(bars: Sequence[tuple[Entry, Bar]], side: Side, key: Mapping[str, str]) -> Spec:
    parts, lines = list[Spec](), list[Spec]()
    for entry, bar in bars:
        own, end = {"decoder": entry.name, "text": bar.text}, 0.0
        for width, part in bar.parts:
            shown = {"from": end, "to": end + width, "part": part}
            parts.append(own | shown | {"opacity": 0.35 if bar.pale else 1})
            end += width
        ticks = {"tick": vl.plain(bar.tick), **vl.ends("end", bar.ends)}
        ink = {"color": vl.INK if bar.parts else vl.MUTED}
        lines.append(own | ticks | ink | {"value": max(end, ticks["end_hi"] or 0)})
    longest = max((line["value"] for line in lines), default=0)
    x = vl.axis("value", side.label, zero=True, domain=[0, longest * side.room or 1], nice=False)
    y = vl.line_of([entry.name for entry, _ in bars])
    shade = vl.OWN | {"field": "part"}
    if key:
        shade |= {"scale": {"domain": [*key], "range": [*key.values()]}}
        shade |= {"legend": {"title": None, "symbolType": "square"}}
    opacity = {"field": "opacity", "type": "quantitative", "scale": None}
    white = {"type": "tick", "color": "white", "thickness": 2, "size": 14}
    reach = {"type": "rule", "color": vl.INK, "strokeWidth": 1.5}
    layers = [
        between({"type": "bar", "height": 14}, parts, "from", "to", x=x, y=y, color=shade,
                tooltip=vl.tooltip(decoder="decoder", text=side.label), opacity=opacity),
        vl.layer(white, lines, x=x | {"field": "tick"}, y=y),
        between(reach, lines, "end_lo", "end_hi", x=x, y=y),
        vl.layer(WORDS | {"dx": 5}, lines, x=x, y=y, text={"field": "text"}, color=vl.OWN),
    ]  # fmt: skip
    if side.speed:
        layers.append(vl.rule_at("x", x, 1, dash=[2, 3]))
    return {"height": vl.LINE * len(bars), "layer": layers}


def draw_speed(run: RunData) -> Chart:
    """Left: codes per forward; right: speed-up."""
    colors = vl.colors_of(run)

    def length(section: Section, entry: Entry) -> Bar:
        value = entry.number("mal")
        if math.isnan(value):
            return Bar([], "not measured")
        bare = math.nan if entry.role is Role.BASELINE else entry.number("mal_no_bonus")
        reach = paired.mal_interval(entry.records) or vl.UNKNOWN
        return Bar([(value, colors[entry.name])], f"{value:.2f}", reach, bare)

    def speed(section: Section, entry: Entry) -> Bar:
        found, pale = entry.interval("speedup"), section.speed_is_noise(entry)
        if math.isnan(found.value):
            return Bar([], "not measured")
        text, reach = f"{found.value:.2f}", vl.UNKNOWN
        if entry.role is not Role.BASELINE and not math.isnan(found.lo + found.hi):
            text, reach = f"{text}  [{found.lo:.2f}, {found.hi:.2f}]", found
        part = (found.value, colors[entry.name])
        return Bar([part], f"{text} ≈" if pale else text, reach, pale=pale)

    caption = (
        "Codes committed per target forward (mean accepted length, MAL); the white tick is without "
        "the bonus code. Lines: 95 % intervals (of codes: bootstrap over images). Pale bars: the "
        "interval of the speed-up includes 1."
    )
    sides = (
        Side("codes per target forward", length, 1.2, "codes per forward not measured"),
        Side("speed-up over AR", speed, 1.62, "speed-up not measured", speed=True),
    )
    return _draw(run, "mal_speedup", "Codes per forward and speed-up", caption, sides, {})


COLORS = {
    "text": "#CC79A7", "prefill": "#56B4E9", "draft": "#E69F00", "forward": "#0072B2",
    "accept": "#D55E00", "other": "#BDBDBD", "VQ decode": "#009E73",
}  # fmt: skip
COLUMNS = (*(f"seconds_{phase}" for phase in PHASES), "seconds_total")
INSIDE = ("prefill", "draft", "forward", "accept")  # what seconds_total covers


def draw_latency(run: RunData) -> Chart:
    """Where the seconds of an image go: one stacked bar a decoder, mean over the timed images."""

    def seconds(section: Section, entry: Entry) -> Bar:
        found = phase_seconds(entry)
        if not found:
            return Bar([], "not timed")
        total = sum(found.values())
        parts = [(width, name) for name, width in found.items()]
        return Bar(parts, f"{total:.{3 if total < 10 else 1}f} s")

    caption = (
        "Mean over the timed images (fastest time of each), batch 1. Other: decoding time "
        "outside the four timed parts (cache, bookkeeping). The figure is the sum; text and VQ "
        "decoding are not part of the speed-up."
    )
    sides = [Side("seconds per image", seconds, 1.09, "no timed images")]
    return _draw(run, "latency", "Latency of one image, by phase", caption, sides, COLORS)


def phase_seconds(entry: Entry) -> dict[str, float]:
    """Mean seconds of every phase over the timed images, see `phases_of`; {} without any."""
    rows = paired.latency_rows(entry.records)
    if rows.empty:
        return {}
    return phases_of({column: float(rows[column].mean()) for column in COLUMNS})


def phases_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every phase by its name in `COLORS`, 0 where not recorded, of the seconds_*
    columns of a row.

    `other` is what seconds_total holds beyond its four timed parts.
    """
    known = {phase: float(np.nan_to_num(seconds[f"seconds_{phase}"])) for phase in PHASES}
    total = float(np.nan_to_num(seconds["seconds_total"]))
    known["other"] = max(total - sum(known[name] for name in INSIDE), 0.0)
    known["VQ decode"] = known["vq"]
    return {name: known[name] for name in COLORS}


FLOORS = {"floor": "#0072B2", "above the floor": "#E69F00", "no floor known": vl.FAINT}


def draw_floors(run: RunData) -> Chart:
    """Left: milliseconds of a target forward; right: of a drafter call."""

    def forward(section: Section, entry: Entry) -> Bar:
        line = run.roofline.get(entry.name)
        if line is None:
            return Bar([], "not timed")
        part, codes = forward_part(line), f"{line['codes']:.0f} codes"
        if part == "ar":
            return _over_floor(line, "ar", "AR step, ")
        if line["forward_ms"] > 0:
            return _over_floor(line, "forward", f"{codes}, ")
        return _over_floor(line, "step", f"step of {codes}, ")

    def draft(section: Section, entry: Entry) -> Bar:
        line = run.roofline.get(entry.name)
        if line is None:
            return Bar([], "")
        absent = "drafts nothing" if forward_part(line) == "ar" else "not timed apart"
        return _over_floor(line, "draft", "", absent)

    caption = (
        "Median over the timed images, batch 1. Blue: the floor, max(bytes / bandwidth, operations "
        "/ rate) on this machine; orange: what the forward takes beyond it; grey: no floor known. "
        "A forward is an AR step, or a verification of so many codes per row (a whole step if a "
        "backend runs it as one)."
    )
    sides = (
        Side("ms per target forward", forward, 2.2, "no timed images"),
        Side("ms per drafter call", draft, 1.8),
    )
    known = not any(math.isnan(line["ar_floor_ms"]) for line in run.roofline.values())
    key = {name: hue for name, hue in FLOORS.items() if name != "no floor known" or not known}
    return _draw(run, "roofline", "Time over floor", caption, sides, key)


def _over_floor(line: dict[str, Any], part: str, what: str, absent: str = "not timed") -> Bar:
    """Floor and rest stacked, and the one over the other in words; absent: where it was not
    timed."""
    taken, floor = line[f"{part}_ms"], line[f"{part}_floor_ms"]
    if math.isnan(taken):
        return Bar([], absent)
    if math.isnan(floor):
        return Bar([(taken, "no floor known")], f"{what}{taken:.2f} ms")
    text = f"{what}{taken:.2f} ms, {taken / floor:.1f} x floor"
    return Bar([(floor, "floor"), (max(taken - floor, 0.0), "above the floor")], text)
