"""Pictures of what is predicted: against what was measured, the frontier of a search, and speed-up
by batch on machines that are not here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bench.report.plots.chart import (
    BASELINE,
    FAINT,
    HUES,
    MUTED,
    Chart,
    Spec,
    axis,
    color,
    layer,
    linked,
    plain,
    rule_at,
    save,
    tooltip,
)
from bench.report.plots.labels import placed
from bench.report.plots.scatter import names_mark

SIDE = 460  # pixels of a square picture
CROWDED = 12  # names at most


def predicted_plot(rows: pd.DataFrame, title: str, folder: Path) -> tuple[Path, Path]:
    """Measured speed-up (with its interval) over the predicted one; rows: predicted.csv, of which
    those that ran. Writes predicted.svg and .png."""
    ran = _rows(rows[rows.measured.notna()], "predicted")
    values = [row[key] for row in ran for key in ("x", "lo", "hi") if row[key] is not None]
    low, high = 0.9 * min(values, default=1.0), 1.08 * max(values, default=1.0)
    x = axis("x", "predicted speed-up over AR", domain=[low, high], padding=0)
    y = axis("measured", "measured speed-up over AR", domain=[low, high], padding=0)
    ends = [{"x": v, "measured": v, "under": 0.9 * v, "over": 1.1 * v} for v in (low, high)]
    area = {"type": "area", "color": FAINT, "opacity": 0.5, "clip": True}
    line = {"type": "line", "color": MUTED, "strokeDash": [5, 4]}
    layers = [
        layer(area, ends, x=x, y=y | {"field": "under"}, y2={"field": "over"}),
        layer(line, ends, x=x, y=y),
        *_measured(ran, x, y, HUES[0], "circle"),
        _names(ran, "measured", x, y, [low, high], [low, high]),
    ]
    caption = "Dashed: prediction and measurement agree; grey: within 10 %. Bars: 95 % intervals."
    return _saved("predicted", title, caption, layers, folder)


def frontier_plot(rows: pd.DataFrame, title: str, folder: Path) -> tuple[Path, Path]:
    """Predicted speed-up over what quality costs; rows: tune.csv. Writes frontier.svg and .png."""
    greedy = bool(rows.output_tv.isna().all())
    column = "moved_mean" if greedy else "output_tv"
    eligible = rows.eligible.astype(bool)
    front = rows[eligible & rows.frontier.astype(bool)].sort_values(column)
    x = axis("x", "mean mass moved" if greedy else "mean output TV of a draft")
    y = axis("speedup", "speed-up over AR")
    dot = {"type": "point", "filled": True, "size": 18, "opacity": 1}
    best, ran = _rows(front, column), _rows(rows[rows.measured.notna()], column)
    every = _rows(rows, column)
    layers = [
        layer(dot, _rows(rows[~eligible], column), x=x, y=y, color=color(FAINT)),
        layer(dot, _rows(rows[eligible], column), x=x, y=y, color=color(BASELINE)),
        layer({"type": "line", "strokeDash": [5, 4], "color": HUES[0]}, best, x=x, y=y),
        layer(dot | {"size": 45}, best, x=x, y=y, color=color(HUES[0])),
        *_measured(ran, x, y | {"field": "measured"}, HUES[1], "diamond"),
        rule_at("y", y, 1),
        _names(best[:CROWDED], "speedup", x, y, [row["x"] for row in every],
               [1.0, *(row["speedup"] for row in every)]),
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
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    colors = {name: HUES[i % len(HUES)] for i, name in enumerate(names)}
    x = axis("batch", "batch size", type="log", base=2, padding=6)
    x |= {"axis": {"values": [*batches], "grid": False}}
    y = axis("speedup", "speed-up over AR at this batch")
    panels: list[Spec] = []
    for machine, lines in found.items():
        points = [
            {"decoder": name, "batch": batch, "speedup": plain(value)}
            for name, values in lines.items()
            for batch, value in zip(batches, values, strict=True)
        ]
        mark = {"type": "line", "strokeWidth": 1.6, "point": {"size": 24}}
        said = tooltip(decoder="decoder", batch="batch", speedup="speed-up")
        line = layer(mark, points, 1, x=x, y=y, color={}, tooltip=said)
        layers = [rule_at("y", y, 1.0, dash=[2, 3]), line]
        panels.append({"title": machine, "height": 190, "layer": layers})
    caption = (
        f"{what}, projected from data sheets and recorded acceptance; nothing was timed. Places of "
        "images that are done are refilled."
    )
    chart = Chart("projected", "By batch", caption, linked(panels, colors, columns=3))
    return save(chart, folder)


def _rows(rows: pd.DataFrame, column: str) -> list[Spec]:
    """Of every decoder of which it is known: x, and its speed-ups."""
    figures = {"x": column, "speedup": "speedup", "measured": "measured", "lo": "measured_lo",
               "hi": "measured_hi"}  # fmt: skip
    return [
        {"decoder": str(row["decoder"])}
        | {key: plain(float(row.get(name, math.nan))) for key, name in figures.items()}
        for row in rows[rows[column].notna()].to_dict("records")
    ]


def _measured(ran: Sequence[Spec], x: Spec, y: Spec, hue: str, shape: str) -> list[Spec]:
    """Measured speed-ups with their intervals."""
    mark = {"type": "point", "filled": True, "size": 60, "opacity": 1, "shape": shape}
    bar = {"type": "rule", "strokeWidth": 1.4}
    ends = {"y": y | {"field": "lo"}, "y2": {"field": "hi"}}
    return [
        layer(bar, ran, x=x, color=color(hue), **ends),
        layer(mark, ran, x=x, y=y, color=color(hue)),
    ]


def _names(
    rows: Sequence[Spec], up: str, x: Spec, y: Spec, across: list[float], along: list[float]
) -> Spec:
    """Where there is room; across, along: what the axes span."""
    at = {row["decoder"]: (row["x"], row[up]) for row in rows}
    sides = placed(at, across, along, (SIDE, SIDE))
    named = [{"decoder": n, "x": at[n][0], up: at[n][1], **side} for n, side in sides.items()]
    return layer(names_mark(), named, x=x, y=y, text={"field": "decoder"})


def _saved(
    name: str, title: str, caption: str, layers: list[Spec], folder: Path
) -> tuple[Path, Path]:
    panel = {"title": title, "width": 1.4 * SIDE, "height": SIDE, "layer": layers}
    return save(Chart(name, title, caption, linked([panel], {}, columns=1)), folder)
