"""Moved mass against the declared bound, and the output TV that the decoder really has.

For every position at which a draft was tested: the mass that the relaxed rule moves, TV(p, p_A),
and the bound that the rule declares for it. Then, at the recorded positions, the exact distance
between p and the law of the emitted code: a rule may keep its bound on the moved mass and break it
on the output.
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.records.run_data import Entry, Role, RunData, Section
from bench.report.plots.style import INK, MUTED, RC, Look, Plot, finish, left_out, looks, row_panels

TESTED = (1, 2, 3)  # CodeKind DRAFT, RELAXED, CORRECTED: the codes at which a draft was tested
MOVED_AT, OUTPUT_AT = -0.17, 0.2  # offsets of the two strips of a decoder
VIOLATION = "#B2182B"


def shown(run: RunData) -> bool:
    """Whether any decoder but AR has recorded positions."""
    every = [e for s in run.sections for e in s.decoders if not e.failed]
    return any(
        entry.replayed or len(_flat(entry.images["moved"])) or len(_flat(entry.images["tv_output"]))
        for entry in every
        if entry.role is not Role.BASELINE
    )


def draw(run: RunData) -> Plot:
    """Two strips a decoder: moved mass with its bound, output TV with its bound."""
    caption = (
        "Upper strip: mass moved at tested positions (thick: middle half, thin: 5 to 95 %, dot: "
        "mean). Lower strip: true output TV at recorded positions (diamond: mean, thin: 5 to "
        "95 %); red where its mean exceeds the mean declared bound. Black bars: declared bound "
        "(mean; grey: 5 to 95 % where it varies by position). Square: output bound (mean), which "
        "the acceptance allows. Exact rules move nothing."
    )
    with matplotlib.rc_context(RC):
        styles = looks(run)
        figure, panels = row_panels(run, columns=1, row_inches=0.43)
        for section, (ax,) in zip(run.sections, panels, strict=True):
            drawn = [
                entry
                for at, entry in enumerate(section.decoders)
                if _strips(ax, at, entry, styles[entry.part_key])
            ]
            caption += left_out(section, drawn, "no draft was tested or its TV was not recorded")
            caption += _no_output(section, drawn)
            ax.set_xlim(left=-0.01)
        panels[-1][0].set_xlabel("total variation (share of probability mass)")
        _key(figure)
        return finish("moved_mass", "Moved mass against declared bound", caption, figure)


def tested_positions(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(moved, bound) at every position where a draft was tested, all images together."""
    kinds = _flat(rows["kind"])
    keep = np.isin(kinds, TESTED)
    return _flat(rows["moved"])[keep], _flat(rows["bound"])[keep]


def _flat(column: pd.Series) -> np.ndarray:
    lists = [np.asarray(values, dtype=float) for values in column if values is not None]
    return np.concatenate(lists) if lists else np.empty(0)


def _strips(ax: Axes, at: int, entry: Entry, look: Look) -> bool:
    """Draws a decoder's two strips; False when it has neither."""
    rows = entry.images
    moved, bound = tested_positions(rows)
    output, limit = _flat(rows["tv_output"]), _flat(rows["tv_declared_bound"])
    text = "failed" if entry.failed else "not measured"
    if entry.role is Role.BASELINE or entry.replayed:
        text = "replayed: no rule decided" if entry.replayed else "drafts nothing"
    elif len(moved) or len(output):
        text = ""
    if text:
        ax.text(0.004, at, text, va="center", color=MUTED, fontsize=8.5)
        return entry.role is Role.BASELINE or entry.replayed
    if len(moved):
        y = at + MOVED_AT
        low, lower, upper, high = np.quantile(moved, [0.05, 0.25, 0.75, 0.95])
        ax.plot([low, high], [y, y], color=look.color, lw=1.4)
        ax.plot([lower, upper], [y, y], color=look.color, lw=6, solid_capstyle="butt")
        ax.plot(moved.mean(), y, "o", color=look.color, ms=5, mec="white", mew=0.9, zorder=4)
        _bound(ax, bound, y)
    if len(output):
        y = at + OUTPUT_AT
        over = len(limit) > 0 and output.mean() > limit.mean() + 1e-6
        color = VIOLATION if over else look.color
        low, high = np.quantile(output, [0.05, 0.95])
        ax.plot([low, high], [y, y], color=color, lw=1.4, alpha=0.7)
        ax.plot(output.mean(), y, "D", color=color, ms=5.5, mec="white", mew=0.8, zorder=4)
        _bound(ax, limit, y)
        least = _flat(rows["tv_output_bound"])
        if len(least):
            ax.plot(least.mean(), y, "s", mfc="none", mec="black", ms=7.5, mew=1, zorder=5)
    return True


def _bound(ax: Axes, values: np.ndarray, y: float) -> None:
    """A black bar at the mean declared bound; a grey range behind it where the bound varies."""
    if not len(values):
        return
    low, high = np.quantile(values, [0.05, 0.95])
    if high - low > 1e-6:
        ax.fill_betweenx([y - 0.13, y + 0.13], low, high, color="#000000", alpha=0.1, lw=0)
    mean = values.mean()
    ax.plot([mean, mean], [y - 0.15, y + 0.15], color="black", lw=2, zorder=3)


def _no_output(section: Section, drawn: list[Entry]) -> str:
    """Caption text naming the decoders whose true output TV was not recorded."""
    without = [
        entry.name
        for entry in drawn
        if entry.role is not Role.BASELINE
        and not entry.replayed
        and not len(_flat(entry.ok["tv_output"]))
    ]
    return f" {section.title}: no output TV for {', '.join(without)}." if without else ""


def _key(figure: Figure) -> None:
    figure.legend(
        handles=[
            Line2D([], [], color=INK, lw=5, marker="o", mec="white", ms=6, label="moved mass"),
            Line2D([], [], color=INK, lw=1.4, marker="D", mec="white", ms=6, label="output TV"),
            Line2D([], [], color="black", ls="", marker="|", ms=11, mew=2, label="declared bound"),
            Line2D(
                [], [], color="black", ls="", marker="s", mfc="none", ms=7, label="output bound"
            ),
        ],
        loc="outside upper right",
        ncols=4,
        handlelength=1.8,
    )
