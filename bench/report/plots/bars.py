"""Bars, one line a decoder and one band a section: accepted length and speed-up, where an image's
seconds go, time over floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bench.judge import paired
from bench.records.load import PHASES
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.notes import unfair_caption
from bench.report.plots.style import (
    FAINT,
    INK,
    MUTED,
    RC,
    Plot,
    finish,
    left_out,
    looks,
    row_panels,
)
from bench.report.roofline import figure as number
from bench.report.roofline import forward_part


@dataclass(frozen=True)
class Bar:
    """Parts (width, colour) from left to right, and what is written right of them. ends: an
    interval; tick: a white line; pale: the figure is noise."""

    parts: Sequence[tuple[float, str]]
    text: str
    ends: tuple[float, float] = (math.nan, math.nan)
    tick: float = math.nan
    pale: bool = False


@dataclass(frozen=True)
class Side:
    """One column of bars. of: a decoder's bar, or why it has none; room: the axis over the longest
    bar, for the figures; reason: names in the caption the decoders that have none; speed: these are
    speed-ups over AR."""

    label: str
    of: Callable[[Section, Entry], Bar | str]
    room: float
    reason: str = ""
    speed: bool = False


Key = Mapping[str, str]  # label -> colour


def _draw(run: RunData, plot: tuple[str, str, str], sides: Sequence[Side], key: Key) -> Plot:
    """plot: its name, title and caption."""
    name, title, caption = plot
    figure, panels = row_panels(run, columns=len(sides), row_inches=0.36)
    for section, axes in zip(run.sections, panels, strict=True):
        named: list[Entry] = []  # failed decoders are named once
        for ax, side in zip(axes, sides, strict=True):
            drawn = [e for at, e in enumerate(section.decoders) if _line(ax, at, section, e, side)]
            if side.speed:
                ax.axvline(1, color=MUTED, lw=0.9, ls=":")
            caption += left_out(section, [*drawn, *named], side.reason) if side.reason else ""
            named = [entry for entry in section.decoders if entry.failed]
    for at, side in enumerate(sides):  # the axes of a column are shared
        longest = max(axes[at].dataLim.x1 for axes in panels)
        panels[0][at].set_xlim(0, longest * side.room if 0 < longest < math.inf else 1.0)
        panels[-1][at].set_xlabel(side.label)
    caption += unfair_caption(run) if any(side.speed for side in sides) else ""
    if key:
        figure.legend(
            handles=[Patch(color=color, label=text) for text, color in key.items()],
            loc="outside upper right", ncols=len(key),
            handlelength=1, handletextpad=0.4, columnspacing=0.9,
        )  # fmt: skip
    return finish(name, title, caption, figure)


def _line(ax: Axes, at: int, section: Section, entry: Entry, side: Side) -> bool:
    """Draws a decoder's bar, or why there is none."""
    bar = "failed" if entry.failed else side.of(section, entry)
    if isinstance(bar, str):
        ax.text(0.02, at, bar, transform=ax.get_yaxis_transform(), va="center", color=MUTED)
        return False
    end, edge = 0.0, "white" if len(bar.parts) > 1 else None
    for width, color in bar.parts:
        alpha = 0.35 if bar.pale else 1
        ax.barh(at, width, left=end, height=0.62, color=color, alpha=alpha, ec=edge, lw=0.4)
        end += width
    if not math.isnan(bar.tick):
        ax.plot([bar.tick, bar.tick], [at - 0.31, at + 0.31], color="white", lw=1.6)
    if not any(map(math.isnan, bar.ends)):
        ax.plot(bar.ends, [at, at], color=INK, lw=1.3, solid_capstyle="butt")
        end = max(end, bar.ends[1])
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    ax.annotate(
        bar.text, (end, at), xytext=(4, 0), textcoords="offset points", va="center",
        fontsize=8.5, color=INK, bbox=box,
    )  # fmt: skip
    return True


def draw_speed(run: RunData) -> Plot:
    """Left: MAL; right: speed-up."""
    with matplotlib.rc_context(RC):
        colors = {key: look.color for key, look in looks(run).items()}

        def length(section: Section, entry: Entry) -> Bar | str:
            value = entry.number("mal")
            if math.isnan(value):
                return "not measured"
            bare = math.nan if entry.role is Role.BASELINE else entry.number("mal_no_bonus")
            ends = mal_interval(entry)
            return Bar([(value, colors[entry.part_key])], f"{value:.2f}", ends, bare)

        def speed(section: Section, entry: Entry) -> Bar | str:
            found, pale = entry.interval("speedup"), section.speed_is_noise(entry)
            if math.isnan(found.value):
                return "not measured"
            text, ends = f"{found.value:.2f}", (math.nan, math.nan)
            if entry.role is not Role.BASELINE and not math.isnan(found.lo + found.hi):
                text, ends = f"{text}  [{found.lo:.2f}, {found.hi:.2f}]", (found.lo, found.hi)
            part = (found.value, colors[entry.part_key])
            return Bar([part], f"{text} ≈" if pale else text, ends, pale=pale)

        caption = (
            "MAL: codes committed per target forward; the white tick is MAL without the bonus "
            "code. Lines: 95 % intervals (MAL: bootstrap over images). Pale bars: the interval of "
            "the speed-up includes 1."
        )
        codes = "mean accepted length (codes per target forward)"
        sides = (
            Side(codes, length, 1.2, "MAL not measured"),
            Side("speed-up over AR", speed, 1.62, "speed-up not measured", speed=True),
        )
        return _draw(run, ("mal_speedup", "Mean accepted length and speed-up", caption), sides, {})


def mal_interval(entry: Entry) -> tuple[float, float]:
    """95 % bootstrap interval over images of codes per target forward; NaN below two images."""
    found = paired.mal_interval(entry.records)
    return (math.nan, math.nan) if found is None else (found.lo, found.hi)


NAMES = {
    "text": "text", "prefill": "prefill", "draft": "draft", "forward": "forward",
    "accept": "accept", "other": "other", "vq": "VQ decode",
}  # fmt: skip
COLORS = {
    "text": "#CC79A7", "prefill": "#56B4E9", "draft": "#E69F00", "forward": "#0072B2",
    "accept": "#D55E00", "other": "#BDBDBD", "vq": "#009E73",
}  # fmt: skip
COLUMNS = (*(f"seconds_{phase}" for phase in PHASES), "seconds_total")
INSIDE = ("prefill", "draft", "forward", "accept")  # what seconds_total covers


def draw_latency(run: RunData) -> Plot:
    """Where the seconds of an image go: one stacked bar a decoder, mean over the timed images."""

    def seconds(section: Section, entry: Entry) -> Bar | str:
        found = phase_seconds(entry)
        if not found:
            return "not timed"
        total = sum(found.values())
        parts = [(width, COLORS[name]) for name, width in found.items()]
        return Bar(parts, f"{total:.{3 if total < 10 else 1}f} s")

    caption = (
        "Mean over the timed images (fastest time of each), batch 1. Other: decoding time "
        "outside the four timed parts (cache, bookkeeping). The figure is the sum; text and VQ "
        "decoding are not part of the speed-up."
    )
    key = {text: COLORS[name] for name, text in NAMES.items()}
    sides = [Side("seconds per image", seconds, 1.09, "no timed images")]
    with matplotlib.rc_context(RC):
        return _draw(run, ("latency", "Latency of one image, by phase", caption), sides, key)


def phase_seconds(entry: Entry) -> dict[str, float]:
    """Mean seconds of every phase over the timed images, see `phases_of`; {} without any."""
    rows = entry.latency_rows()
    if rows.empty:
        return {}
    return phases_of({column: float(rows[column].mean()) for column in COLUMNS})


def phases_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every phase, 0 where not recorded, of the seconds_* columns of a row.

    `other` is what seconds_total holds beyond its four timed parts.
    """
    known = {phase: float(np.nan_to_num(seconds[f"seconds_{phase}"])) for phase in PHASES}
    total = float(np.nan_to_num(seconds["seconds_total"]))
    known["other"] = max(total - sum(known[name] for name in INSIDE), 0.0)
    return {name: known[name] for name in NAMES}


FLOOR, ABOVE = "#0072B2", "#E69F00"


def draw_floors(run: RunData) -> Plot:
    """Left: milliseconds of a target forward; right: of a drafter call."""

    def forward(section: Section, entry: Entry) -> Bar | str:
        line = run.roofline.get(entry.name)
        if line is None:
            return "not timed"
        part, codes = forward_part(line), f"{number(line, 'codes'):.0f} codes"
        if part == "ar":
            return _over_floor(line, "ar", "AR step, ") or "not timed"
        if number(line, "forward_ms") > 0:
            return _over_floor(line, "forward", f"{codes}, ") or "not timed"
        return _over_floor(line, "step", f"step of {codes}, ") or "not timed"

    def draft(section: Section, entry: Entry) -> Bar | str:
        line = run.roofline.get(entry.name)
        if line is None:
            return ""
        absent = "drafts nothing" if forward_part(line) == "ar" else "not timed apart"
        return _over_floor(line, "draft", "") or absent

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
    key = {"floor": FLOOR, "above the floor": ABOVE}
    if any(math.isnan(number(line, "ar_floor_ms")) for line in run.roofline.values()):
        key["no floor known"] = FAINT
    with matplotlib.rc_context(RC):
        return _draw(run, ("roofline", "Time over floor", caption), sides, key)


def _over_floor(line: dict[str, Any], part: str, what: str) -> Bar | None:
    """Floor and rest stacked, and the one over the other in words; None where it was not timed."""
    taken, floor = number(line, f"{part}_ms"), number(line, f"{part}_floor_ms")
    if math.isnan(taken):
        return None
    if math.isnan(floor):
        return Bar([(taken, FAINT)], f"{what}{taken:.2f} ms")
    text = f"{what}{taken:.2f} ms, {taken / floor:.1f} x floor"
    return Bar([(floor, FLOOR), (max(taken - floor, 0.0), ABOVE)], text)
