"""Pictures that commands draw: predictions against what was measured, the frontier of a search,
speed-up by batch on machines that are not here, and the curves of a training."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bench.report.plots import chart as vl
from bench.report.plots.chart import Chart, Spec
from bench.report.plots.series import DOT, WORDS, between, names, series

log = logging.getLogger(__name__)
SIDE = 460  # pixels of a square picture
CROWDED = 12  # names at most
DASHED: Spec = {"type": "line", "strokeDash": [5, 4]}
CURVES = {
    "loss": "loss", "overlap_": "accepted, training", "held_overlap_": "accepted, held out",
}  # fmt: skip


def predicted_plot(rows: pd.DataFrame, title: str, folder: Path) -> tuple[Path, Path]:
    """Measured speed-up (with its interval) over the predicted one; rows: predicted.csv, of which
    those that ran. Writes predicted.svg and .png."""
    ran = _rows(rows[rows.measured.notna()], "predicted")
    values = [row[key] for row in ran for key in ("x", *MEASURED[1:]) if row[key] is not None]
    span = [0.9 * min(values, default=1.0), 1.08 * max(values, default=1.0)]
    x = vl.axis("x", "predicted speed-up over AR", domain=span, padding=0)
    y = vl.axis("measured", "measured speed-up over AR", domain=span, padding=0)
    ends = [{"x": v, "measured": v, "under": 0.9 * v, "over": 1.1 * v} for v in span]
    area = {"type": "area", "color": vl.FAINT, "opacity": 0.5, "clip": True}
    layers = [
        between(area, ends, "under", "over", along="y", x=x, y=y),
        vl.layer(DASHED | {"color": vl.MUTED}, ends, x=x, y=y),
        *series(ran, DOT, 0, x=x, y=y, color=vl.color(vl.HUES[0]), ends="y"),
        names(ran, x, y, span, span, (SIDE, SIDE)),
    ]
    caption = "Dashed: prediction and measurement agree; grey: within 10 %. Bars: 95 % intervals."
    return _saved("predicted", title, caption, layers, folder)


def frontier_plot(rows: pd.DataFrame, title: str, folder: Path) -> tuple[Path, Path]:
    """Predicted speed-up over what quality costs; rows: tune.csv. Writes frontier.svg and .png."""
    greedy = bool(rows.output_tv.isna().all())
    column = "moved_mean" if greedy else "output_tv"
    eligible = rows.eligible.astype(bool)
    front = rows[eligible & rows.frontier.astype(bool)].sort_values(column)
    x = vl.axis("x", "mean mass moved" if greedy else "mean output TV of a draft")
    y = vl.axis("speedup", "speed-up over AR")
    best, ran = _rows(front, column), _rows(rows[rows.measured.notna()], column)
    every = _rows(rows, column)
    dot, diamond = DOT | {"size": 18}, DOT | {"shape": "diamond"}
    measured = y | {"field": "measured"}
    layers = [
        vl.layer(dot, _rows(rows[~eligible], column), x=x, y=y, color=vl.color(vl.FAINT)),
        vl.layer(dot, _rows(rows[eligible], column), x=x, y=y, color=vl.color(vl.BASELINE)),
        vl.layer(DASHED | {"color": vl.HUES[0]}, best, x=x, y=y),
        vl.layer(dot | {"size": 45}, best, x=x, y=y, color=vl.color(vl.HUES[0])),
        *series(ran, diamond, 0, x=x, y=measured, color=vl.color(vl.HUES[1]), ends="y"),
        vl.rule_at("y", y, 1),
        names(best[:CROWDED], x, y, [row["x"] for row in every],
              [1.0, *(row["speedup"] for row in every)], (SIDE, SIDE)),
    ]  # fmt: skip
    caption = (
        "Dots: predicted; faint ones are outside the class asked for. Dashed: no candidate is "
        "both faster and milder. Diamonds: measured, with 95 % intervals."
    )
    return _saved("frontier", title, caption, layers, folder)


def projected_plot(
    found: Mapping[str, Mapping[str, Sequence[float]]],
    batches: Sequence[int],
    what: str,
    folder: Path,
) -> tuple[Path, Path]:
    """A panel per machine, a line per decoder: speed-ups at `batches`. Writes projected.svg and
    .png."""
    every = dict.fromkeys(name for lines in found.values() for name in lines)
    colors = {name: vl.HUES[i % len(vl.HUES)] for i, name in enumerate(every)}
    x = vl.axis("batch", "batch size", type="log", base=2, padding=6)
    x |= {"axis": {"values": [*batches], "grid": False}}
    y = vl.axis("speedup", "speed-up over AR at this batch")
    said = vl.tooltip(decoder="decoder", batch="batch", speedup="speed-up")
    panels: list[Spec] = []
    for machine, lines in found.items():
        points = [
            {"decoder": name, "batch": batch, "speedup": vl.plain(value)}
            for name, values in lines.items()
            for batch, value in zip(batches, values, strict=True)
        ]
        drawn = series(points, DOT | {"size": 24}, x=x, y=y, line=1.6, tooltip=said)
        layers = [vl.rule_at("y", y, 1.0, dash=[2, 3]), *drawn]
        panels.append({"title": machine, "height": 190, "layer": layers})
    caption = (
        f"{what}, projected from data sheets and recorded acceptance; nothing was timed. Places of "
        "images that are done are refilled."
    )
    chart = Chart("projected", "By batch", caption, vl.linked(panels, colors, columns=3))
    return vl.save(chart, folder)


MEASURED = ("speedup", "measured", "measured_lo", "measured_hi")


def _rows(rows: pd.DataFrame, column: str) -> list[Spec]:
    """Of every decoder of which it is known: x, and its speed-ups."""
    return [
        {"decoder": str(row["decoder"]), "x": float(row[column])}
        | {key: vl.plain(float(row.get(key, math.nan))) for key in MEASURED}
        for row in rows[rows[column].notna()].to_dict("records")
    ]


def _saved(
    name: str, title: str, caption: str, layers: list[Spec], folder: Path
) -> tuple[Path, Path]:
    panel = {"title": title, "width": 1.4 * SIDE, "height": SIDE, "layer": layers}
    return vl.save(Chart(name, title, caption, vl.linked([panel], {}, columns=1)), folder)


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
