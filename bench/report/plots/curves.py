"""The curves of a training: loss, and the accepted share of drafts in training and held out."""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path

from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.series import DOT, WORDS, series

log = logging.getLogger(__name__)
CURVES = {
    "loss": "loss", "overlap_": "accepted, training", "held_overlap_": "accepted, held out",
}  # fmt: skip


def draw_curves(curve: Path) -> None:
    """Draws the CSV of `decoders.training.loop.Loop`, three panels, next to it, as SVG and PNG.
    Without vl-convert-python a warning says so: no training is lost to its picture."""
    with curve.open() as file:
        rows = list(csv.DictReader(file))
    panels = [{"title": title, **_curves(rows, prefix)} for prefix, title in CURVES.items()]
    chart = Chart("curves", "Training", "", vl.linked(panels, {}, len(panels)))
    try:
        vl.save(chart, curve.parent)
    except ImportError as error:
        log.warning(
            "left out: the picture of %s (%s); `pip install vl-convert-python`", curve, error
        )


def _curves(rows: Sequence[dict[str, str]], prefix: str) -> Spec:
    """One panel: every column called `prefix`, or `prefix` and a number, named at its end."""
    columns = [
        c for c in (rows[0] if rows else {})
        if c == prefix or (prefix.endswith("_") and c.removeprefix(prefix).isdigit())
    ]  # fmt: skip
    points, last = list[Spec](), list[Spec]()
    for number, column in enumerate(columns):
        mine = [
            {"step": float(r["step"]), "value": float(r[column]), "of": column.removeprefix(prefix),
             "color": vl.HUES[number % len(vl.HUES)]}
            for r in rows if r.get(column)
        ]  # fmt: skip
        points += mine
        last += mine[-1:]
    place: Spec = {"x": vl.axis("step", "step", zero=True), "y": vl.axis("value")}
    return {"height": 200, "layer": [
        *series(points, DOT | {"size": 8}, 0, **place, color=vl.OWN, line=1.3),
        vl.layer(WORDS | {"dx": 4}, last, **place, text={"field": "of"}),
    ]}  # fmt: skip
