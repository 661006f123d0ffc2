"""What one number changes, between decoders equal in all else.

The settings are read from study.json, so every run shows them whose decoders differ in one number
only, however they were named: `bench sweep`, or a study that lists them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.config.differences import settings_of
from bench.records.run_data import Entry, RunData, Section
from bench.report.plots import style
from bench.report.plots.quality import CLIP, FID, QUALITIES, SPEED
from bench.report.plots.style import Plot, styled
from metrics.stats import UNKNOWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 1.9  # inches
CAPTION = (
    "Decoders that differ in this setting only; a line joins decoders that are equal in all else. "
    "Bars: 95 % intervals. Grey line: AR; grey band: AR under one more seed."
)


@dataclass(frozen=True)
class Swept:
    """A setting, and the decoders that differ in nothing else: lists of (value, entry)."""

    setting: str
    series: list[list[tuple[float, Entry]]]


@styled
def draw(run: RunData) -> list[Plot]:
    """A figure for each setting of which a section has several values; [] without any."""
    found = [(section, swept) for section in run.sections for swept in swept_in(run, section)]
    return [
        Plot(f"sweep_{number}", f"{swept.setting}. {section.title}", CAPTION,
             _figure(run, section, swept))
        for number, (section, swept) in enumerate(found, 1)
    ]  # fmt: skip


def swept_in(run: RunData, section: Section) -> Iterator[Swept]:
    """Every setting of which two decoders of the section have different numbers and all else
    equal."""
    listed = run.identity.get("config", {}).get("decoders", [])
    settings = {entry["name"]: settings_of(entry) for entry in listed}
    entries = [e for e in section.decoders if e.name in settings and not e.failed]
    for name in dict.fromkeys(key for entry in entries for key in settings[entry.name]):
        groups: dict[str, list[tuple[float, Entry]]] = {}
        for entry in entries:
            own = settings[entry.name]
            if _is_number(own.get(name)):
                rest = json.dumps({k: v for k, v in own.items() if k != name}, sort_keys=True)
                groups.setdefault(rest, []).append((own[name], entry))
        series = [sorted(line, key=lambda pair: pair[0]) for line in groups.values()
                  if len({value for value, _ in line}) > 1]  # fmt: skip
        if series:
            yield Swept(name, series)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(run: RunData, section: Section, swept: Swept) -> Figure:
    """The speed-up and each known figure of quality over the setting's values, with what AR has:
    its figure, and the band of its other seeds."""
    entries = [entry for line in swept.series for _, entry in line]
    figures = {m: [m.of(e).value for e in entries] for m in QUALITIES}
    measures = [SPEED, *(m for m, own in figures.items() if any(v > 0 for v in own))]
    values = sorted({value for line in swept.series for value, _ in line})
    figure, rows = style.panels([HEIGHT] * -(-len(measures) // 2), columns=2)
    places, colors = [axes for row in rows for axes in row], style.colors_of(run)
    for axes in places[len(measures) :]:
        axes.remove()
    for measure, axes in zip(measures, places, strict=False):
        band = section.reseeded(measure.column) if measure in (FID, CLIP) else UNKNOWN
        if math.isfinite(band.half_width):
            axes.axhspan(band.lo, band.hi, color=style.MUTED, alpha=0.2, linewidth=0)
        if section.baseline and math.isfinite(own := measure.of(section.baseline).value):
            axes.axhline(own, color=style.MUTED, linewidth=1)
        for line in swept.series:
            at = [values.index(value) for value, _ in line]
            axes.plot(at, [measure.of(e).value for _, e in line], color=style.MUTED)
            for x, (_, entry) in zip(at, line, strict=True):
                style.point(axes, entry, colors[entry.name], x, measure.of(entry))
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set(ylabel=measure.label(section).split(",")[0], xlabel=swept.setting)
        axes.set_xlim(-0.4, len(values) - 0.6)
        axes.grid(visible=True, axis="y")
    style.verdict_key(figure, entries)
    return figure
