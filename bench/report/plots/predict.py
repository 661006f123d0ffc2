"""Two pictures: predicted against measured speed-up, and the frontier of a search."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bench.report.plots.labels import Label
from bench.report.plots.style import BASELINE, FAINT, HUES, INK, MUTED, RC, finish, save

SIDE = 5.2  # inches of a square figure
CROWDED = 12  # labels at most


def predicted_plot(rows: pd.DataFrame, title: str, folder: Path) -> tuple[Path, Path]:
    """Measured speed-up (with its interval) over the predicted one; rows: predicted.csv, of which
    those that ran. Writes predicted.svg and .png."""
    ran = rows[rows.measured.notna()]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(SIDE + 1.6, SIDE), layout="constrained")
        ax = figure.subplots()
        low = 0.9 * min(ran.predicted.min(), ran.measured_lo.min())
        high = 1.08 * max(ran.predicted.max(), ran.measured_hi.max())
        ax.plot([low, high], [low, high], color=MUTED, lw=1, ls="--")
        ax.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color=FAINT,
                        alpha=0.5, lw=0)  # fmt: skip
        labels, boxes = [], []
        for name, x, y, least, most in _points(ran, "predicted", "measured"):
            ax.plot([x, x], [least, most], color=HUES[0], lw=1.4)
            ax.plot(x, y, "o", color=HUES[0], ms=6, mec="white")
            boxes.append(Bbox([[x, least], [x, most]]))
            labels.append(Label(x, y, name, INK))
        ax.set_xlim(low, high)
        ax.set_ylim(low, high)
        ax.set_xlabel("predicted speed-up over AR")
        ax.set_ylabel("measured speed-up over AR")
        ax.grid()
        ax.set_title(title)
        caption = (
            "Dashed: prediction and measurement agree; grey: within 10 %. Bars: 95 % intervals."
        )
        return save(finish("predicted", title, caption, figure, [(ax, labels, boxes)]), folder)


def frontier_plot(rows: pd.DataFrame, title: str, folder: Path) -> tuple[Path, Path]:
    """Predicted speed-up over what quality costs; rows: tune.csv. Writes frontier.svg and .png."""
    greedy = bool(rows.output_tv.isna().all())
    column = "moved_mean" if greedy else "output_tv"
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(SIDE + 1.8, SIDE), layout="constrained")
        ax = figure.subplots()
        rest = rows[~rows.eligible.astype(bool)]
        shown = rows[rows.eligible.astype(bool)]
        ax.plot(rest[column], rest.speedup, ".", color=FAINT, ms=5)
        ax.plot(shown[column], shown.speedup, ".", color=BASELINE, ms=6)
        front = shown[shown.frontier.astype(bool)].sort_values(column)
        ax.plot(front[column], front.speedup, "o--", color=HUES[0], ms=6, lw=1.1, mec="white")
        ran = rows[rows.measured.notna()]
        for _, x, y, least, most in _points(ran, column, "measured"):
            ax.plot([x, x], [least, most], color=HUES[1], lw=1.4)
            ax.plot(x, y, "D", color=HUES[1], ms=5.5, mec="white")
        ax.axhline(1, color=MUTED, lw=0.8)
        ax.set_xlabel("mean mass moved" if greedy else "mean output TV of a draft")
        ax.set_ylabel("speed-up over AR")
        ax.margins(x=0.18, y=0.12)
        ax.grid()
        named = _points(front.head(CROWDED), column, "speedup")
        labels = [Label(x, y, name, INK) for name, x, y, _, _ in named]
        ax.set_title(title)
        caption = (
            "Dots: predicted; faint ones are outside the class asked for. Dashed: no candidate is "
            "both faster and milder. Diamonds: measured, with 95 % intervals."
        )
        return save(finish("frontier", title, caption, figure, [(ax, labels, [])]), folder)


def _points(rows: pd.DataFrame, x: str, y: str) -> list[tuple[str, float, float, float, float]]:
    """(decoder, x, y, ends of the measured interval) of every row."""
    columns = (rows["decoder"], rows[x], rows[y], rows["measured_lo"], rows["measured_hi"])
    return [(str(n), *map(float, values)) for n, *values in zip(*columns, strict=True)]  # type: ignore[misc]
