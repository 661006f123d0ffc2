"""Moved mass against the declared bound, and the output TV that the decoder really has.

For every position at which a draft was tested: the mass that the relaxed rule moves, TV(p, p_A),
and the bound that the rule declares for it. Then, at the recorded positions, the exact distance
between p and the law of the emitted code: a rule may keep its bound on the moved mass and have a
larger distance of the output.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots.chart import (
    ABOVE,
    INK,
    MUTED,
    Chart,
    Spec,
    axis,
    colors_of,
    layer,
    left_out,
    line_of,
    linked,
    tooltip,
)

TESTED = (1, 2, 3)  # CodeKind DRAFT, RELAXED, CORRECTED: the codes at which a draft was tested
LINE = 46  # pixels of a decoder: its name and two strips
FIGURES = {"moved mass": -3, "output TV": 11}  # and how many pixels below the middle they stand
OVER = "#B2182B"  # an output TV that exceeds what is declared
SHARES = (0.05, 0.25, 0.75, 0.95)
LEVELS = ("5 %", "25 %", "75 %", "95 %")


def shown(run: RunData) -> bool:
    """Whether any decoder but AR has recorded positions."""
    every = [e for s in run.sections for e in s.decoders if not e.failed]
    return any(
        entry.replayed or len(_flat(entry.images["moved"])) or len(_flat(entry.images["tv_output"]))
        for entry in every
        if entry.role is not Role.BASELINE
    )


def draw(run: RunData) -> Chart:
    """Two strips a decoder: moved mass with its bound, output TV with its bound."""
    caption = (
        "Upper strip (circle): mass moved at tested positions. Lower strip (diamond): output TV at "
        "recorded positions; red where its mean exceeds the mean declared bound († in the "
        "table). Mark: mean; thick: middle half; thin: 5 to 95 %. Black bar: declared bound (mean; "
        "grey: 5 to 95 % where it varies by position). Square: output bound (mean), which the "
        "acceptance allows. Exact rules move nothing."
    )
    colors, panels = colors_of(run), []
    for section in run.sections:
        found = [(entry, *_strips(entry, colors[entry.name])) for entry in section.decoders]
        names = [entry.name for entry, *_ in found]
        rows = [row for _, mine, _ in found for row in mine]
        notes = [{"decoder": e.name, "at": 0.004, "text": why} for e, _, why in found if why]
        panels.append({"title": section.title, **_panel(names, rows, notes)})
        drawn = [e for e, mine, _ in found if mine or e.role is Role.BASELINE or e.replayed]
        caption += left_out(section, drawn, "no draft was tested or its TV was not recorded")
        caption += _no_output(section, drawn)
    spec = linked(panels, colors, columns=1)
    return Chart("moved_mass", "Moved mass against declared bound", caption, spec)


def _strips(entry: Entry, color: str) -> tuple[list[Spec], str]:
    """A decoder's strips; or why it has none."""
    if entry.failed:
        return [], "failed"
    if entry.replayed:
        return [], "replayed: no rule decided"
    if entry.role is Role.BASELINE:
        return [], "drafts nothing"
    rows = entry.images
    output, declared = _flat(rows["tv_output"]), _flat(rows["tv_declared_bound"])
    allowed = _flat(rows["tv_output_bound"])
    found = []
    for figure, values, bound, least in (
        ("moved mass", *tested_positions(rows), np.empty(0)),
        ("output TV", output, declared, allowed),
    ):
        if not len(values):
            continue
        own: Spec = {"decoder": entry.name, "strip": figure, "at": float(values.mean())}
        own |= {"below": FIGURES[figure]}
        own |= dict(zip(LEVELS, np.quantile(values, SHARES).tolist(), strict=True))
        if len(bound):
            own |= {"bound": float(bound.mean())}
            low, high = np.quantile(bound, [SHARES[0], SHARES[-1]]).tolist()
            own |= {"low": low, "high": high} if high - low > 1e-6 else {}
        if len(least):
            own |= {"allowed": float(least.mean())}
        over = figure == "output TV" and own["at"] > own.get("bound", np.inf) + 1e-6
        found.append(own | {"color": OVER if over else color})
    return found, "" if found else "not measured"


def _panel(names: list[str], rows: list[Spec], notes: list[Spec]) -> Spec:
    """A line a decoder."""
    x = axis("at", "total variation (share of probability mass)", nice=True, padding=0)
    y = line_of(names) | {"axis": ABOVE | {"labelOffset": -16}}
    shade: Spec = {"field": "color", "type": "nominal", "scale": None}
    said = tooltip(decoder="decoder", strip="of", at="mean", bound="declared bound",
                   allowed="output bound")  # fmt: skip
    text = {"type": "text", "align": "left", "color": MUTED, "fontSize": 10.5}
    offset = {"yOffset": {"expr": "datum.below"}}
    bar, place = {"type": "bar", **offset}, {"y": y, "color": shade}
    black = {"color": {"value": "black"}}
    kinds = {"domain": [*FIGURES], "range": ["circle", "diamond"]}
    shape = {"field": "strip", "type": "nominal", "scale": kinds, "legend": {"title": None}}
    mean = {"type": "point", "filled": True, "size": 60, "stroke": "white", "opacity": 1}
    varying = [row for row in rows if "low" in row]
    layers = [
        layer(text, notes, x=x, y=y, text={"field": "text"}),
        *([layer(bar | {"height": 13, "opacity": 0.1}, varying, x=x | {"field": "low"},
                 x2={"field": "high"}, y=y, **black)] if varying else []),
        layer(bar | {"height": 1.6}, rows, 0.8, x=x | {"field": LEVELS[0]},
              x2={"field": LEVELS[3]}, **place),
        layer(bar | {"height": 6}, rows, 0.8, x=x | {"field": LEVELS[1]},
              x2={"field": LEVELS[2]}, **place),
        layer({"type": "tick", "thickness": 2.5, "size": 14, **offset}, rows,
              x=x | {"field": "bound"}, y=y, **black),
        layer({"type": "point", "shape": "square", "size": 60, **offset}, rows,
              x=x | {"field": "allowed"}, y=y, color={"value": INK}),
        layer(mean | {"cursor": "pointer", **offset}, rows, 1, x=x, shape=shape, tooltip=said,
              **place),
    ]  # fmt: skip
    return {"height": LINE * len(names), "layer": layers}


def tested_positions(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(moved, bound) at every position where a draft was tested, all images together."""
    kinds = _flat(rows["kind"])
    keep = np.isin(kinds, TESTED)
    return _flat(rows["moved"])[keep], _flat(rows["bound"])[keep]


def _flat(column: pd.Series) -> np.ndarray:
    lists = [np.asarray(values, dtype=float) for values in column if values is not None]
    return np.concatenate(lists) if lists else np.empty(0)


def _no_output(section: Section, drawn: list[Entry]) -> str:
    """Caption text naming the decoders whose true output TV was not recorded."""
    without = [
        entry.name
        for entry in drawn
        if entry.role is not Role.BASELINE
        and not entry.replayed
        and not len(_flat(entry.ok["tv_output"]))
    ]
    return f" {section.title}: no output TV for {', '.join(without)}." if without else ""
