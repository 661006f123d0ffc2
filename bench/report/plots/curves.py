"""The curves of a training: loss, and acceptance by depth in training and held out."""

from __future__ import annotations

import csv
from pathlib import Path

from bench.report.plots import style
from bench.report.plots.style import Plot, save, styled

PANELS = {
    "loss": "loss", "overlap_": "accepted, training", "held_overlap_": "accepted, held out",
}  # fmt: skip


@styled
def draw_curves(curve: Path) -> None:
    """Draws the CSV of `decoders.training.loop.Loop` next to it: each column of `PANELS`, or each
    column that ends in a depth."""
    with curve.open() as file:
        rows = list(csv.DictReader(file))
    figure, places = style.panels([1.8] * len(PANELS))
    for (prefix, title), (axes,) in zip(PANELS.items(), places, strict=True):
        names = [name for name in (rows[0] if rows else {})
                 if name == prefix or (prefix.endswith("_") and name.removeprefix(prefix).isdigit())
                 ]  # fmt: skip
        for name, color in zip(names, style.HUES * len(names), strict=False):
            known = [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]
            depth = f"depth {name.removeprefix(prefix)}" if name != prefix else None
            axes.plot(*zip(*known, strict=True), color=color, label=depth) if known else None
        axes.set(title=title, xlabel="step")
        axes.grid(visible=True)
        if len(names) > 1:
            axes.legend(ncols=4, fontsize=8)
    save(Plot("curves", "Training", "", figure), curve.parent)
