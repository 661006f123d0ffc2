"""Placing direct labels so that they cover neither each other nor the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox, BboxBase

from bench.report.plots.style import MUTED

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in display units
Point = tuple[float, float]


@dataclass(frozen=True)
class Label:
    """Text for a data point; coordinates in data units."""

    x: float
    y: float
    text: str
    color: str


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `values`, at least `gap` apart, inside [low, high] if they fit.

    Keeps the order of the values. Neighbours that collide form a block centred on their mean.
    """
    order = sorted(range(len(values)), key=lambda at: values[at])
    blocks: list[tuple[float, int]] = []  # (sum of wanted block centres, members)
    for at in order:
        blocks.append((values[at], 1))
        while (
            len(blocks) > 1
            and _bottom(blocks[-1], gap, low, high) - _top(blocks[-2], gap, low, high) < gap
        ):
            total, size = blocks.pop()
            earlier, members = blocks.pop()
            blocks.append((earlier + total, members + size))
    places = [0.0] * len(values)
    queue = iter(order)
    for block in blocks:
        start = _bottom(block, gap, low, high)
        for step in range(block[1]):
            places[next(queue)] = start + step * gap
    return places


def _bottom(block: tuple[float, int], gap: float, low: float, high: float) -> float:
    total, size = block
    extent = (size - 1) * gap
    return max(low, min(high - extent, total / size - extent / 2))


def _top(block: tuple[float, int], gap: float, low: float, high: float) -> float:
    return _bottom(block, gap, low, high) + (block[1] - 1) * gap


def place(ax: Axes, labels: Sequence[Label], obstacles: Sequence[Bbox], size: float = 9) -> None:
    """Writes each label beside its point where it overlaps least; far ones get a leader line.

    Call after the layout and the limits are final. obstacles: boxes in display units (points, error
    bars, lines in pieces).
    """
    figure = ax.get_figure(root=True)
    if figure is None or not labels:
        return
    scale = figure.dpi / 72
    frame = _box(ax.get_window_extent())
    taken = [_box(obstacle) for obstacle in obstacles]
    inverse = ax.transData.inverted()
    points = [_display(ax, label) for label in labels]
    for at, label in enumerate(labels):
        artist = ax.annotate(label.text, (label.x, label.y), fontsize=size, color=label.color)
        shape = artist.get_window_extent()
        artist.remove()
        own, others = points[at], points[:at] + points[at + 1 :]
        spots = _candidates(own, shape.width, shape.height, scale)
        best = min(spots, key=lambda spot: _cost(spot, own, others, taken, frame, scale))
        taken.append(best)
        left, low = inverse.transform((best[0], best[1] + 0.22 * shape.height))
        ax.text(left, low, label.text, fontsize=size, color=label.color, va="baseline", zorder=6)
        anchor = _nearest(best, own)
        if math.dist(anchor, own) > 11 * scale:
            end = inverse.transform(anchor)
            line = ([label.x, end[0]], [label.y, end[1]])
            ax.plot(*line, color=MUTED, alpha=0.6, lw=0.8, zorder=1)


def _box(bbox: BboxBase) -> Box:
    x0, y0, x1, y1 = map(float, bbox.extents)
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def _display(ax: Axes, label: Label) -> Point:
    x, y = ax.transData.transform((label.x, label.y))
    return float(x), float(y)


def _candidates(point: Point, width: float, height: float, scale: float) -> list[Box]:
    """Label boxes around the point, nearest rings first (display units)."""
    boxes = []
    for ring in (7, 13, 20, 30, 42, 56):
        for turn in range(16):
            angle = math.pi / 8 * turn
            dx, dy = math.cos(angle) * ring * scale, math.sin(angle) * ring * scale
            left = point[0] + dx - width * (1 - math.cos(angle)) / 2
            bottom = point[1] + dy - height * (1 - math.sin(angle)) / 2
            boxes.append((left, bottom, left + width, bottom + height))
    return boxes


def _cost(
    box: Box,
    point: Point,
    others: Sequence[Point],
    taken: Sequence[Box],
    frame: Box,
    scale: float,
) -> float:
    """Overlap and seeming to belong to another point weigh more than distance; leaving the axes
    weighs most."""
    x0, y0, x1, y1 = box
    outside = max(frame[0] - x0, x1 - frame[2], frame[1] - y0, y1 - frame[3], 0.0)
    overlap = 0.0
    for other in taken:
        width = min(x1, other[2]) - max(x0, other[0])
        height = min(y1, other[3]) - max(y0, other[1])
        if width >= 0 and height >= 0:
            overlap += (width + scale) * (height + scale)
    far = math.dist(_nearest(box, point), point)
    closest = min((math.dist(_nearest(box, other), other) for other in others), default=math.inf)
    doubt = max(far + 8 * scale - closest, 0.0)
    centre = ((x0 + x1) / 2, (y0 + y1) / 2)
    return outside * 1000 + overlap * 20 / scale + 4 * doubt + far + 0.05 * math.dist(centre, point)


def _nearest(box: Box, point: Point) -> Point:
    """The point of a box nearest to `point`: itself where it lies inside."""
    return min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])
