"""Speed-up against quality: which decoders buy speed, and what they pay for it.

A relaxed rule may lose no CLIP score and still be far from the target, and the other way round, so
both have a figure (output TV: lemma R of docs/decoders.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots import style
from bench.report.plots.style import Plot, by_section, left_out, styled
from metrics.stats import Interval

HEIGHT = 3.4  # inches


@dataclass(frozen=True)
class Measure:
    """A figure of quality, or the speed-up: its column of the summary, its name, and its sign (-1:
    lower is better)."""

    column: str
    name: str
    sign: int

    def label(self, section: Section) -> str:
        """Of its axis in a section."""
        named = {"fid": section.fid_name, "clip": section.clip_name}
        better = {-1: ", lower is better", 0: "", 1: ", higher is better"}
        return named.get(self.column, self.name) + better[self.sign]

    def of(self, entry: Entry) -> Interval:
        """An entry's figure, with its interval where it has one. AR is at no distance from its own
        distribution; what an exact decoder has of one is rounding."""
        if self is TV:
            value = entry.number(self.column)
            exact = entry.exact and not math.isnan(value)
            return Interval(
                0.0 if exact or entry.role is Role.BASELINE else value, math.nan, math.nan
            )
        own = self is SPEED and entry.role is Role.BASELINE
        found = entry.interval(self.column)
        return Interval(found.value, math.nan, math.nan) if own else found

    def drawn(self, section: Section) -> list[Entry]:
        """The decoders of which this and the speed-up are known. Of the exact ones, which all have
        output TV 0, the fastest stands for all."""
        entries = [e for e in section.decoders if not e.failed]
        known = [e for e in entries if not math.isnan(self.of(e).value + SPEED.of(e).value)]
        exact = [e for e in known if e.exact and e.role is not Role.BASELINE]
        if self is not TV or not exact:
            return known
        fastest = max(exact, key=lambda e: SPEED.of(e).value)
        return [e for e in known if e is fastest or e not in exact]


FID, CLIP = Measure("fid", "FID", -1), Measure("clip", "CLIP score", 1)
TV = Measure("tv_output", "output TV", -1)
SPEED = Measure("speedup", "speed-up over AR", 0)
QUALITIES = (FID, CLIP, TV)


def sections(run: RunData, measure: Measure) -> list[Section]:
    """Those in which it says something: of output TV, where a decoder is not exact."""

    def tells(entry: Entry) -> bool:
        return entry.role is Role.DECODER and not (measure is TV and entry.exact)

    return [s for s in run.sections if any(map(tells, measure.drawn(s)))]


@styled
def draw(run: RunData, measure: Measure) -> Plot:
    """Speed-up against one figure, a row per section."""
    from matplotlib.patches import Patch

    shown = sections(run, measure)
    figure, rows = by_section(shown, [HEIGHT] * len(shown))
    colors, side = style.colors_of(run), "left" if measure.sign < 0 else "right"
    caption = f"Up and to the {side} is better. Bars: 95 % intervals."
    if measure is TV:
        caption += (
            " Output TV: the mean over recorded nodes. Exact decoders have 0; the fastest of them "
            "is shown."
        )
    reseeds: list[Patch] = []
    for section, axes in rows:
        entries, band = measure.drawn(section), section.reseeded(measure.column)
        if measure is not TV and math.isfinite(band.half_width):
            seeds = f"{measure.name} of AR under one more seed"
            shade: dict[str, Any] = {
                "color": style.MUTED,
                "alpha": 0.2,
                "linewidth": 0,
                "label": seeds,
            }
            axes.axvspan(band.lo, band.hi, **shade)
            reseeds = [Patch(**shade)]
        axes.axhline(1, color=style.MUTED, linewidth=0.8, linestyle=":")
        for entry in entries:
            style.point(axes, entry, colors[entry.name], measure.of(entry), SPEED.of(entry))
        axes.set(xlabel=measure.label(section), ylabel=SPEED.name)
        axes.grid(visible=True)
        axes.margins(0.08, 0.1)
        exact = [e for e in section.decoders if measure is TV and e.exact]
        missing = f"{measure.name} or speed-up not measured"
        caption += left_out(section, [*entries, *exact], missing)
    style.verdict_key(figure, run.entries, reseeds)
    for section, axes in rows:
        places = {e.name: (measure.of(e).value, SPEED.of(e).value) for e in measure.drawn(section)}
        style.label(axes, places)
    title = f"Speed-up against {measure.name}"
    return Plot(f"speedup_{measure.column}", title, caption + style.unfair(run), figure)
