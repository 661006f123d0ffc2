"""Bars, a line per decoder: speed-up, codes per forward, and where an image's seconds go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.judge import paired
from bench.records.load import PHASES
from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots import style
from bench.report.plots.style import Plot, by_section, left_out, styled
from bench.report.table import interval
from metrics.stats import UNKNOWN, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, LETTER = 0.29, 0.086  # inches: height of a decoder's line, width of a letter
SHADES = {
    "text": "#CC79A7", "prefill": "#56B4E9", "draft": "#E69F00", "forward": "#0072B2",
    "accept": "#D55E00", "other": "#BDBDBD", "VQ decode": "#009E73",
}  # fmt: skip
INSIDE = ("prefill", "draft", "forward", "accept")  # what seconds_total covers


@dataclass(frozen=True)
class Bar:
    """Parts (width, colour) from left to right, and the text right of them: without parts why there
    are none. ends: an interval; tick: a white line; pale: the figure is noise."""

    text: str
    parts: Sequence[tuple[float, str]] = ()
    ends: Interval = UNKNOWN
    tick: float = math.nan
    pale: bool = False


def _draw(
    run: RunData, name: str, title: str, caption: str, of: Callable[[Section, Entry], Bar],
    axis: str, reason: str,
) -> Plot:  # fmt: skip
    """of: a decoder's bar; axis: what the bars measure; reason: why a decoder may have none."""
    figure, rows = by_section(
        run.sections, [LINE * len(section.decoders) for section in run.sections]
    )
    for section, axes in rows:
        entries = section.decoders
        bars = [Bar("failed") if entry.failed else of(section, entry) for entry in entries]
        ends = [_bar(axes, line, *one) for line, one in enumerate(zip(entries, bars, strict=True))]
        names = [entry.name for entry in entries]
        inches = style.WIDTH - 0.4 - LETTER * max(map(len, names))
        words = LETTER * max(len(bar.text) for bar in bars) + 0.15
        axes.set(xlim=(0, (max(ends) or 1) / (1 - words / inches)), xlabel=axis)
        axes.set(ylim=(len(entries) - 0.4, -0.6), yticks=range(len(entries)), yticklabels=names)
        axes.tick_params(axis="y", length=0)
        drawn = [entry for entry, bar in zip(entries, bars, strict=True) if bar.parts]
        caption += left_out(section, drawn, reason)
    return Plot(name, title, caption, figure)


def _bar(axes: Axes, line: int, entry: Entry, bar: Bar) -> float:
    """Draws a decoder's bar; where it ends."""
    end = 0.0
    for width, color in bar.parts:
        axes.barh(line, width, 0.64, end, color=color, alpha=0.4 if bar.pale else 1)
        end += width
    axes.plot([bar.tick] * 2, [line - 0.26, line + 0.26], color="white", linewidth=2)
    if math.isfinite(bar.ends.lo):
        style.point(axes, entry, style.INK, bar.ends, line, markersize=5)
        end = max(end, bar.ends.hi)
    axes.annotate(bar.text, (end, line), (6, 0), textcoords="offset points", va="center",
                  fontsize=style.SMALL, color=style.INK if bar.parts else style.MUTED)  # fmt: skip
    return end


@styled
def draw_speed(run: RunData) -> Plot:
    """Speed-ups over AR."""
    colors = style.colors_of(run)

    def speed(section: Section, entry: Entry) -> Bar:
        found, noise = entry.interval("speedup"), section.speed_is_noise(entry)
        if math.isnan(found.value):
            return Bar("not measured")
        base = entry.role is Role.BASELINE
        text = f"{found.value:.2f}" if base else interval(found, 2) + " ≈" * noise
        parts = [(found.value, colors[entry.name])]
        return Bar(text, parts, UNKNOWN if base else found, pale=noise)

    caption = (
        "AR's seconds over the decoder's on the same prompts, batch 1, with 95 % intervals. Pale "
        "(≈): the interval includes 1."
    )
    made = _draw(run, "speedup", "Speed-up over AR", caption + style.unfair(run), speed,
                 "speed-up over AR, 95 % interval", "speed-up not measured")  # fmt: skip
    for axes in made.figure.axes:
        axes.axvline(1, color=style.MUTED, linewidth=0.8, linestyle=":")
    style.verdict_key(made.figure, run.entries)
    return made


@styled
def draw_codes(run: RunData) -> Plot:
    """Codes per forward."""
    colors = style.colors_of(run)

    def codes(section: Section, entry: Entry) -> Bar:
        value, bare = entry.number("mal"), entry.number("mal_no_bonus")
        if math.isnan(value):
            return Bar("not measured")
        base = entry.role is Role.BASELINE
        ends = UNKNOWN if base else paired.mal_interval(entry.records) or UNKNOWN
        parts = [(value, colors[entry.name])]
        return Bar(f"{value:.2f}", parts, ends, math.nan if base else bare)

    caption = (
        "Codes committed per forward of the target (mean accepted length, MAL), with 95 % "
        "intervals over images. White tick: without the bonus code."
    )
    return _draw(run, "codes_per_forward", "Codes per forward", caption, codes,
                 "codes per target forward, 95 % interval", "not measured")  # fmt: skip


@styled
def draw_phases(run: RunData) -> Plot:
    """Where the seconds of an image go: one stacked bar a decoder, mean over the timed images."""
    from matplotlib.patches import Patch

    def seconds(section: Section, entry: Entry) -> Bar:
        found = phase_seconds(entry)
        total = sum(found.values())
        parts = [(width, SHADES[name]) for name, width in found.items()]
        return Bar(f"{total:.{3 if total < 10 else 1}f} s" if found else "not timed", parts)

    caption = (
        "Mean over the timed images (fastest time of each), batch 1. Other: decoding time outside "
        "the four timed parts (cache, bookkeeping). Text and VQ decoding are not part of the "
        "speed-up."
    )
    made = _draw(run, "phases", "Where an image's seconds go", caption, seconds,
                 "seconds per image", "no timed images")  # fmt: skip
    style.key(made.figure, [Patch(color=shade, label=name) for name, shade in SHADES.items()])
    return made


def phase_seconds(entry: Entry) -> dict[str, float]:
    """Mean seconds of every phase over the timed images, 0 where not recorded; {} without any.
    `other` is what seconds_total holds beyond its four timed parts."""
    rows = paired.latency_rows(entry.records)
    if rows.empty:
        return {}
    names = (*PHASES, "total")
    means = {name: float(np.nan_to_num(rows[f"seconds_{name}"].mean())) for name in names}
    means["other"] = max(means["total"] - sum(means[name] for name in INSIDE), 0.0)
    means["VQ decode"] = means["vq"]
    return {name: means[name] for name in SHADES}
