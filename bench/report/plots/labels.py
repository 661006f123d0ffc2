"""Placing direct labels so that they cover neither each other nor the data.

`place` and `spread` are for pictures. `placed` is for the linked charts of the page, whose library
draws text where it is asked to: it finds the places in pixels of a chart of the nominal size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

Box = tuple[float, float, float, float]  # x0, y0, x1, y1
Boxes = NDArray[np.float64]  # of points [2], boxes [4] or several of these
RINGS = (7, 13, 20, 30, 42, 56)  # points around a point in which its label may be


@dataclass(frozen=True)
class Label:
    """Text for a data point; coordinates in data units."""

    x: float
    y: float
    text: str
    color: str
    size: float = 9


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


def place(ax: Axes, labels: Sequence[Label], obstacles: Sequence[Bbox], leader: str) -> None:
    """Writes each label next to its point where it overlaps least; far ones get a line of the
    colour `leader`.

    Call after the layout and the limits are final. obstacles: boxes in display units (points, error
    bars, lines in pieces).
    """
    figure = ax.get_figure(root=True)
    if figure is None or not labels:
        return
    ax.autoscale(False)
    scale = figure.dpi / 72
    frame = np.array(ax.get_window_extent().extents)
    taken = [np.concatenate([box.min, box.max]) for box in obstacles]
    inverse = ax.transData.inverted()
    points = ax.transData.transform([(label.x, label.y) for label in labels])  # [N, 2]
    for at, label in enumerate(labels):
        words: dict[str, Any] = {"fontsize": label.size, "color": label.color}
        artist = ax.annotate(label.text, (label.x, label.y), **words)
        size = np.array(artist.get_window_extent().size)
        artist.remove()
        own, others = points[at], np.delete(points, at, axis=0)
        best = _best(_around(own, size, scale), own, others, taken, frame, scale)
        taken.append(best)
        left, low = inverse.transform((best[0], best[1] + 0.22 * size[1]))
        ax.text(left, low, label.text, va="baseline", zorder=6, **words)
        anchor = np.clip(own, best[:2], best[2:])
        if math.dist(anchor, own) > 11 * scale:
            end = inverse.transform(anchor)
            line = ([label.x, end[0]], [label.y, end[1]])
            ax.plot(*line, color=leader, alpha=0.6, lw=0.8, zorder=1)


def _around(point: Boxes, size: Boxes, scale: float) -> Boxes:
    """Label boxes around a point in display units, nearest rings first: [R, 4]."""
    turns = np.pi / 8 * np.arange(16)
    ways = np.stack([np.cos(turns), np.sin(turns)], axis=1)  # [16, 2]
    rings = scale * np.array(RINGS)[:, None, None]  # [6, 1, 1]
    low = (point + rings * ways - size * (1 - ways) / 2).reshape(-1, 2)
    return np.hstack([low, low + size])


def _best(
    boxes: Boxes, own: Boxes, others: Boxes, taken: Sequence[Boxes], frame: Boxes, scale: float
) -> Boxes:
    """The box that costs least: overlap and seeming to belong to another point weigh more than
    distance; leaving the axes weighs most."""
    low, high = boxes[:, :2], boxes[:, 2:]

    def away(point: Boxes) -> Boxes:
        return np.linalg.norm(np.clip(point, low, high) - point, axis=1)

    outside = np.maximum(frame[:2] - low, high - frame[2:]).max(axis=1).clip(0)
    overlap = np.zeros(len(boxes))
    for other in taken:
        sides = np.minimum(high, other[2:]) - np.maximum(low, other[:2])
        overlap += (sides >= 0).all(axis=1) * (sides + scale).prod(axis=1)
    far = away(own)
    closest = np.min([away(other) for other in others], axis=0, initial=np.inf)
    doubt = (far + 8 * scale - closest).clip(0)
    centre = np.linalg.norm((low + high) / 2 - own, axis=1)
    costs = 1000 * outside + 20 / scale * overlap + 4 * doubt + far + 0.05 * centre
    return boxes[costs.argmin()]


LETTER, LINE, MARK = 5.8, 11.0, 6.0  # pixels: width of a letter, height of a line, radius of a mark
SIDES = (  # text align, dx, dy
    ("left", 8, -8), ("right", -8, -8), ("left", 8, 9), ("right", -8, 9),
    ("left", 10, 0), ("right", -10, 0), ("center", 0, -14), ("center", 0, 15),
)  # fmt: skip


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
