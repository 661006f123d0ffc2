"""Small charts of a sweep: what one setting changes, between decoders equal in all else.

The settings are read from study.json, so every run shows them whose decoders differ in one setting
only, however they were named: `bench sweep`, or a study that lists them. A whole part that was
exchanged (`tree=chain,static`) counts as one setting; only a setting's numbers are joined by a
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.records.folder import read_identity
from bench.report.model import Entry, Run, Section
from bench.report.page.charts import (
    MEASURES,
    Charts,
    Spec,
    axis,
    fading,
    kind_of,
    linked,
    names,
    plain,
    points,
    tooltip,
)
from bench.report.plots.pareto import Quality, interval, measured
from bench.report.plots.style import MUTED, looks

Settings = dict[str, Any]  # acceptance -> its class, acceptance.delta -> 0.1, ...
PARTS = ("loop", "drafter", "tree", "proposer", "acceptance")
CAPTION = (
    "Decoders that differ in one setting or one part only; a point's label is the setting's value, "
    "or the decoder's name where a whole part differs. A line joins the values of a number in "
    "rising order. Up is faster. Bars: 95 % intervals of the speed-up."
)


@dataclass(frozen=True)
class Swept:
    """A setting, and the decoders that differ in nothing else: lists of (value, entry)."""

    setting: str
    series: list[list[tuple[Any, Entry]]]


def sweep_charts(run: Run) -> list[Charts]:
    """Small charts for each section in which a setting takes several values; [] without any."""
    if not (run.folder / "study.json").is_file():
        return []
    listed = read_identity(run.folder)["config"].get("decoders", [])
    settings = {entry["name"]: flat(entry) for entry in listed}
    colors = {key: look.color for key, look in looks(run).items()}
    made = []
    for section in run.sections:
        panels, shown = [], dict[str, Entry]()
        for swept in swept_in(section, settings):
            for quality in MEASURES:
                if (panel := _panel(section, swept, quality)) is not None:
                    panels.append(panel)
                    shown |= {e.name: e for line in swept.series for _, e in line}
        if panels:
            rows = [{"decoder": name, "kind": kind_of(entry)} for name, entry in shown.items()]
            key = {name: colors[entry.part_key] for name, entry in shown.items()}
            made.append(Charts(section.title, CAPTION, linked(panels, rows, key)))
    return made


def flat(entry: dict[str, Any]) -> Settings:
    """The settings of a decoder of study.json, by the names that a command line has for them."""
    found = {f"sampling.{key}": value for key, value in entry["sampling"].items()}
    for name in PARTS:
        part = entry["spec"].get(name)
        found[name] = None if part is None else part["target"]
        if part is not None:
            found |= {f"{name}.{key}": value for key, value in part["kwargs"].items()}
    return found


def swept_in(section: Section, settings: dict[str, Settings]) -> Iterator[Swept]:
    """Every setting of which two decoders of the section have different values and all else equal,
    and every part that they differ in by more than one setting."""
    entries = [e for e in section.decoders if e.name in settings and not e.failed]
    names = dict.fromkeys(key for entry in entries for key in settings[entry.name])
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
    if name not in PARTS:
        return len({json.dumps(value) for value, _ in line}) > 1
    return len({json.dumps(value[name]) for value, _ in line}) > 1


def _ordered(name: str, line: list[tuple[Any, Entry]]) -> list[tuple[Any, Entry]]:
    """Numbers by size; where whole parts differ, the decoders' names stand for them."""
    if name in PARTS:
        return [(entry.name, entry) for _, entry in line]
    if all(isinstance(value, int | float) for value, _ in line):
        return sorted(line, key=lambda pair: pair[0])
    return line


def _panel(section: Section, swept: Swept, quality: Quality) -> Spec | None:
    """One small chart; None where fewer than two of the decoders have the figure."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(swept.series):
        for value, entry in line:
            if not measured(entry, quality):
                continue
            low, high = interval(entry, "speedup")
            found.append({
                "decoder": entry.name, "kind": kind_of(entry), "label": str(value),
                "verdict": entry.text("exactness"), "order": len(found), "series": number,
                "numbers": isinstance(value, int | float), "speedup": entry.number("speedup"),
                "speedup_lo": plain(low), "speedup_hi": plain(high),
                quality.column: quality.of(entry),
            })  # fmt: skip
    if len(found) < 2:
        return None
    title = quality.label(section)
    x, y = axis(quality.column, title), axis("speedup", "speed-up over AR")
    color: Spec = {"legend": {"title": "decoder"}}
    layers: list[Spec] = [
        {"mark": {"type": "line", "color": MUTED, "strokeWidth": 1.2},
         "transform": [{"filter": "datum.numbers"}],
         "encoding": {"x": x, "y": y, "order": {"field": "order"}, "detail": {"field": "series"}}},
        {"mark": {"type": "rule", "strokeWidth": 1.2},
         "encoding": {"x": x, "y": y | {"field": "speedup_lo"}, "y2": {"field": "speedup_hi"},
                      "color": {**color}, "opacity": fading(0.5)}},
        points(f"{swept.setting}_{quality.column}".replace(".", "_"), x, y,
               [{"field": "label", "title": swept.setting}, *tooltip(quality.column, title)]),
    ]  # fmt: skip
    layers += names(x, y, "label", [point[quality.column] for point in found])
    return {"title": f"{swept.setting}: {quality.name}", "width": 250, "height": 190,
            "data": {"values": found}, "layer": layers}  # fmt: skip
