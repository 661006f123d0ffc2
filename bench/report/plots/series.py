"""Series of points with their intervals, lines and names: what all charts are put together from.

The library draws text where it is asked to, so the places of names are found in pixels of a chart
of the nominal size: they cover neither each other nor other points. A name without room is left
out: its colour is in the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.report.plots.chart import Spec, layer

Box = tuple[float, float, float, float]  # x0, y0, x1, y1
LETTER, LINE, MARK = 5.8, 11.0, 6.0  # pixels: width of a letter, height of a line, radius of a mark
SIDES = (  # text align, dx, dy
    ("left", 8, -8), ("right", -8, -8), ("left", 8, 9), ("right", -8, 9),
    ("left", 10, 0), ("right", -10, 0), ("center", 0, -14), ("center", 0, 15),
    ("left", 8, -20), ("right", -8, -20), ("left", 8, 21), ("right", -8, 21),
)  # fmt: skip
DOT: Spec = {"type": "point", "filled": True, "size": 60, "opacity": 1, "cursor": "pointer"}
DECODER = DOT | {"size": 110, "stroke": "white", "strokeWidth": 0.8}
WORDS: Spec = {"type": "text", "align": "left", "fontSize": 10.5}


def series(
    rows: Sequence[Spec],
    mark: Spec,
    fade: float = 1,
    /,
    *,
    x: Spec,
    y: Spec,
    color: Spec | None = None,
    ends: str = "",
    line: float = 0,
    **encoding: Any,
) -> list[Spec]:
    """Points over a line, `line` pixels wide, and over their intervals along the axes in `ends`, in
    columns `_lo` and `_hi`. color: None: the decoder's; encoding: of the points alone."""
    place = {"x": x, "y": y, "color": color or {}}
    layers = [layer({"type": "line", "strokeWidth": line}, rows, fade, **place)] if line else []
    for along in ends:
        low, high = (f"{place[along]['field']}{end}" for end in ("_lo", "_hi"))
        reach = {"type": "rule", "strokeWidth": 1.4}
        layers.append(between(reach, rows, low, high, 0.6 * fade, along=along, **place))
    return [*layers, layer(mark, rows, fade, **place, **encoding)]


def between(
    mark: Spec,
    rows: Sequence[Spec],
    low: str,
    high: str,
    fade: float = 0,
    /,
    *,
    along: str = "x",
    **encoding: Any,
) -> Spec:
    """Marks from one column to another along an axis."""
    ends = {along: encoding[along] | {"field": low}, f"{along}2": {"field": high}}
    return layer(mark, rows, fade, **encoding | ends)


def names(
    rows: Sequence[Spec],
    x: Spec,
    y: Spec,
    across: Sequence[float],
    up: Sequence[float],
    size: tuple[float, float],
    fade: float = 0,
) -> Spec:
    """What points are called, see `placed`. across, up: all values along the axes."""
    spots = {row["decoder"]: (row[x["field"]], row[y["field"]]) for row in rows}
    found = placed(spots, across, up, size)
    fields = ("decoder", x["field"], y["field"])
    named = [
        {field: row[field] for field in fields} | found[row["decoder"]]
        for row in rows
        if row["decoder"] in found
    ]
    where = {name: {"expr": f"datum.{name}"} for name in ("align", "dx", "dy")}
    return layer(WORDS | where, named, fade, x=x, y=y, text={"field": "decoder"})


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions nearest to `values` that are at least `gap` apart, in the values' order and inside
    [low, high] if they fit. Less `gap` times their rank they only have to rise: an isotonic
    regression."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    found = isotonic_regression(np.asarray(values, dtype=float)[order] - steps).x
    places = np.empty(len(values))
    places[order] = np.maximum(np.minimum(found, high - steps[-1]), low) + steps
    return places.tolist()


def placed(
    points: Mapping[str, tuple[float, float]],
    across: Sequence[float],
    up: Sequence[float],
    size: tuple[float, float],
) -> dict[str, dict[str, Any]]:
    """Name -> align, dx and dy of its text, for the names that have room.

    points: name -> (x, y) in data units; across, up: all values along the axes, which span them;
    size: width and height in pixels.
    """
    spots = {
        name: (_share(x, across) * size[0], (1 - _share(y, up)) * size[1])
        for name, (x, y) in points.items()
    }
    marks = {name: (x - MARK, y - MARK, x + MARK, y + MARK) for name, (x, y) in spots.items()}
    taken: list[Box] = []
    found = {}
    for name, (x, y) in spots.items():
        others = [*taken, *(mark for other, mark in marks.items() if other != name)]
        for align, dx, dy in SIDES:
            box = _text_box(x + dx, y + dy, align, LETTER * len(name))
            if box[0] >= -MARK and box[2] <= size[0] + MARK and not _hit(box, others):
                taken.append(box)
                found[name] = {"align": align, "dx": dx, "dy": dy}
                break
    return found


def _share(value: float, values: Sequence[float]) -> float:
    """0 at the least of the values, 1 at the largest."""
    low, high = min(values), max(values)
    return (value - low) / (high - low) if high > low else 0.5


def _text_box(x: float, y: float, align: str, width: float) -> Box:
    left = x - {"left": 0.0, "center": 0.5, "right": 1.0}[align] * width
    return left, y - LINE / 2, left + width, y + LINE / 2


def _hit(box: Box, others: Sequence[Box]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )
