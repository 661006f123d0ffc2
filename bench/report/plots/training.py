"""Curves of a training: loss and its parts against steps, held-out acceptance per depth.

Why apart from the report's plots: those are drawn from a study's records, these from a curve of a
training, and `decoders` draws nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report.plots.style import FAINT, HUES, INK, MUTED, RC, WIDTH

PANELS = (
    ("loss", "loss"),
    ("overlap_", "accepted, training"),
    ("held_overlap_", "accepted, held out"),
)


def draw_curves(curve: Path, path: Path) -> None:
    """Draws the CSV of `decoders.training.loop.Loop` as a PNG of three panels."""
    import matplotlib
    from matplotlib.figure import Figure

    with curve.open() as file:
        rows = list(csv.DictReader(file))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        for axis, (prefix, title) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            _panel(axis, rows, prefix, title)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _panel(axis: Any, rows: Sequence[dict[str, str]], prefix: str, title: str) -> None:
    """One panel: every column whose name is `prefix` or begins with it, labelled at its end."""
    columns = [c for c in (rows[0] if rows else {}) if c == prefix or _numbered(c, prefix)]
    for number, column in enumerate(columns):
        points = [(float(r["step"]), float(r[column])) for r in rows if r.get(column)]
        if not points:
            continue
        steps, values = zip(*points, strict=True)
        mark = "o" if len(points) == 1 else None
        axis.plot(steps, values, color=HUES[number % len(HUES)], linewidth=1.2, marker=mark, ms=3)
        depth = column.removeprefix(prefix)
        if depth:
            axis.annotate(
                depth, (steps[-1], values[-1]), (4, 0), textcoords="offset points", va="center",
                color=INK, fontsize=8,
            )  # fmt: skip
    axis.set(title=title, xlabel="step")
    axis.grid(color=FAINT, linewidth=0.6)
    axis.tick_params(colors=MUTED)


def _numbered(column: str, prefix: str) -> bool:
    return prefix.endswith("_") and column.removeprefix(prefix).isdigit() and column != prefix
