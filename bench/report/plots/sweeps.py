"""Small charts of a sweep: what one setting changes, between decoders equal in all else.

The settings are read from study.json, so every run shows them whose decoders differ in one setting
only, however they were named: `bench sweep`, or a study that lists them. A whole part that was
exchanged (`tree=chain,static`) counts as one setting; only a setting's numbers are joined by a
line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.config.describe import PARTS
from bench.config.differences import settings_of
from bench.records.run_data import Entry, RunData, Section
from bench.records.study import read_identity
from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.scatter import MEASURES, SPEED, Quality
from bench.report.plots.series import DECODER, series

Settings = dict[str, Any]  # acceptance._target_ -> its class, acceptance.delta -> 0.1, ...
CAPTION = (
    "Decoders that differ in one setting or one part only: along the axis the setting's values, or "
    "the decoders where a whole part differs. A line joins decoders that are equal in all else. "
    "Bars: 95 % intervals (TV has none). Grey line: AR; grey band: AR under other seeds."
)


@dataclass(frozen=True)
class Swept:
    """A setting, and the decoders that differ in nothing else: lists of (value, entry)."""

    setting: str
    series: list[list[tuple[Any, Entry]]]


def sweep_charts(run: RunData) -> list[Chart]:
    """Small charts for each section in which a setting takes several values; [] without any."""
    if not (run.folder / "study.json").is_file():
        return []
    listed = read_identity(run.folder)["config"].get("decoders", [])
    settings = {entry["name"]: settings_of(entry) for entry in listed}
    made = []
    for section in run.sections:
        found = [*swept_in(section, settings)]
        shown = {entry.name: entry for swept in found for line in swept.series for _, entry in line}
        measures = [
            m for m in (SPEED, *MEASURES) if any(math.isfinite(m.of(e)) for e in shown.values())
        ]
        panels = [_panel(section, swept, measure) for swept in found for measure in measures]
        if panels:
            spec = vl.linked(panels, vl.colors_of(run), len(measures))
            made.append(Chart("sweep", section.title, CAPTION, spec))
    return made


def swept_in(section: Section, settings: dict[str, Settings]) -> Iterator[Swept]:
    """Every setting of which two decoders of the section have different values and all else equal,
    and every part that they differ in by more than one setting."""
    entries = [e for e in section.decoders if e.name in settings and not e.failed]
    keys = (key for entry in entries for key in settings[entry.name])
    names = dict.fromkeys(key.removesuffix("._target_") for key in keys)
    for name in names:
        groups: dict[str, list[tuple[Any, Entry]]] = {}
        for entry in entries:
            own = settings[entry.name]
            inside = {k: v for k, v in own.items() if k == name or k.startswith(f"{name}.")}
            rest = json.dumps({k: v for k, v in own.items() if k not in inside}, sort_keys=True)
            value = own.get(name) if name not in PARTS else inside
            groups.setdefault(rest, []).append((value, entry))
        series = [line for line in groups.values() if _differ(name, line)]
        if series:
            yield Swept(name, [_ordered(name, line) for line in series])


def _differ(name: str, line: list[tuple[Any, Entry]]) -> bool:
    """Whether the values are several, of which no other setting's charts say the same."""
    own = [value.get(f"{name}._target_") if name in PARTS else value for value, _ in line]
    return len(set(map(json.dumps, own))) > 1


def _ordered(name: str, line: list[tuple[Any, Entry]]) -> list[tuple[Any, Entry]]:
    """Numbers by size; where whole parts differ, the decoders' names stand for them."""
    if name in PARTS:
        return [(entry.name, entry) for _, entry in line]
    if all(is_number(value) for value, _ in line):
        return sorted(line, key=lambda pair: pair[0])
    return line


def _panel(section: Section, swept: Swept, quality: Quality) -> Spec:
    """A figure over the setting's values, and over what AR has: its figure, and the band of its
    other seeds. A line joins values that are numbers."""
    values = [value for line in swept.series for value, _ in line]
    numbers = all(map(is_number, values))
    labels = [*dict.fromkeys(map(str, sorted(values) if numbers else values))]
    look = {"grid": False, "labelAngle": 0 if numbers else -30, "labelLimit": 150}
    x = {"field": "value", "type": "ordinal", "title": swept.setting, "sort": labels, "axis": look}
    title = quality.label(section)
    rows = [
        vl.row_of(entry)
        | vl.ends("figure", quality.reach(entry, section))
        | {"value": str(value), "series": at}
        for at, line in enumerate(swept.series)
        for value, entry in line
    ]
    y = {"field": "figure", "type": "quantitative", "title": None, "scale": {"zero": False}}
    own = quality.of(section.baseline) if section.baseline else math.nan
    layers = vl.band("y", y, section.reseeded(quality.column))
    if math.isfinite(own):
        layers.append(vl.rule_at("y", y, own))
    if numbers:
        line = {"type": "line", "color": vl.MUTED, "strokeWidth": 1.2}
        layers.append(vl.layer(line, rows, x=x, y=y, detail={"field": "series"}))
    said = {"value": swept.setting, "decoder": "decoder", "verdict": "verdict"}
    said |= {"figure": title.split(",")[0], "figure_lo": "from", "figure_hi": "to"}
    layers += series(rows, DECODER, x=x, y=y, ends="y", shape={},
                     tooltip=vl.tooltip(**said, codes="codes per forward"))  # fmt: skip
    return {"title": title, "height": 170, "layer": layers}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
