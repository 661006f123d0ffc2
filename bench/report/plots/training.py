"""Curves of a training: loss and its parts against steps, held-out acceptance per depth.

Why apart from the report's plots: those are drawn from a study's records, these from a curve of a
training, and `decoders` draws nothing.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path

from bench.report.plots.chart import HUES, Chart, Spec, axis, layer, linked, save

log = logging.getLogger(__name__)
PANELS = {
    "loss": "loss", "overlap_": "accepted, training", "held_overlap_": "accepted, held out",
}  # fmt: skip


def draw_curves(curve: Path) -> None:
    """Draws the CSV of `decoders.training.loop.Loop`, three panels, next to it, as SVG and PNG.
    Without vl-convert-python a warning says so: no training is lost to its picture."""
    with curve.open() as file:
        rows = list(csv.DictReader(file))
    panels = [{"title": title, **_panel(rows, prefix)} for prefix, title in PANELS.items()]
    chart = Chart("curves", "Training", "", linked(panels, {}, len(panels)))
    try:
        save(chart, curve.parent)
    except ImportError as error:
        log.warning(
            "left out: the picture of %s (%s); `pip install vl-convert-python`", curve, error
        )


def _panel(rows: Sequence[dict[str, str]], prefix: str) -> Spec:
    """One panel: every column whose name is `prefix` or begins with it, named at its end."""
    columns = [c for c in (rows[0] if rows else {}) if c == prefix or _numbered(c, prefix)]
    points, last = list[Spec](), list[Spec]()
    for number, column in enumerate(columns):
        mine = [
            {"step": float(r["step"]), "value": float(r[column]), "of": column.removeprefix(prefix),
             "color": HUES[number % len(HUES)]}
            for r in rows if r.get(column)
        ]  # fmt: skip
        points += mine
        last += mine[-1:]
    x, y = axis("step", "step", zero=True), axis("value")
    color: Spec = {"field": "color", "type": "nominal", "scale": None}
    line = {"type": "line", "strokeWidth": 1.3, "point": {"size": 8}}
    text = {"type": "text", "align": "left", "dx": 4}
    return {"height": 200, "layer": [
        layer(line, points, x=x, y=y, color=color),
        layer(text, last, x=x, y=y, text={"field": "of"}),
    ]}  # fmt: skip


def _numbered(column: str, prefix: str) -> bool:
    return prefix.endswith("_") and column.removeprefix(prefix).isdigit() and column != prefix
