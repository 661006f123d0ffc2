"""What the plots share: palette, sizes, panels, captions and saving.

Plots are read in a README column about 830 pixels wide, so figures are 8.5 inches wide with text of
8 points or more. Colours are Okabe and Ito's, two of Tol's after them: colour-blind readers tell
them apart. Every mark is also labelled directly, so colour never stands alone. No pyplot: nothing
global is touched.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bench.records.run_data import Entry, Role, RunData, Section
from bench.records.schema import write_atomically
from bench.report.plots.labels import Label, place

WIDTH = 8.5  # inches
CAPTION = 128  # characters of a caption's line at that width
INK, MUTED, FAINT = "#222222", "#666666", "#d9d9d9"
BASELINE = "#6b6b6b"
HUES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#882255",
)  # fmt: skip
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", "*")  # one more than hues: pairs differ
DASHES = ("-", "--", ":", "-.")

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#e8e8e8",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "lantern-bench",  # equal input, equal bytes
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Plot:
    """A finished figure; the caption (also drawn below it) says what was left out and why."""

    name: str  # file stem
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Look:
    """How one composition is drawn in every plot, at every temperature."""

    color: str
    marker: str
    dash: str


def looks(run: RunData) -> dict[tuple[str, str], Look]:
    """(acceptance, tree) -> Look, by appearance; AR is grey, hues repeat with new dashes."""
    found: dict[tuple[str, str], Look] = {}
    hues, markers = cycle(HUES), cycle(MARKERS)
    for entry in run.entries:
        if entry.part_key in found or entry.role is Role.RESEED:
            continue
        if entry.role is Role.BASELINE:
            found[entry.part_key] = Look(BASELINE, "o", "-")
            continue
        place = sum(look.color != BASELINE for look in found.values())
        dash = DASHES[place // len(HUES) % len(DASHES)]
        found[entry.part_key] = Look(next(hues), next(markers), dash)
    return found


def row_panels(run: RunData, columns: int, row_inches: float) -> tuple[Figure, list[list[Axes]]]:
    """One band of `columns` axes a section, stacked, as high as its decoders need."""
    counts = [max(len(section.decoders), 1) for section in run.sections]
    height = sum(counts) * row_inches + 0.75 * len(counts) + 0.5
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(
        len(counts), columns, squeeze=False, sharex="col", height_ratios=[n + 0.6 for n in counts]
    )
    for section, axes in zip(run.sections, grid, strict=True):
        axes[0].set_title(section.title, pad=10)
        for ax in axes:
            ax.set_ylim(len(section.decoders) - 0.4, -0.6)
            ax.set_yticks(range(len(section.decoders)), [""] * len(section.decoders))
            ax.tick_params(axis="y", length=0)
            ax.grid(axis="x")
            ax.tick_params(axis="x", labelbottom=True)
        axes[0].set_yticklabels([entry.name for entry in section.decoders])
    return figure, [list(axes) for axes in grid]


def square_panels(run: RunData, rows: int, panel_inches: float) -> tuple[Figure, list[list[Axes]]]:
    """[section][row] axes: two sections side by side, further ones below."""
    count = len(run.sections)
    across = min(count, 2)
    bands = -(-count // across)
    figure = Figure(figsize=(WIDTH, bands * rows * panel_inches + 0.6), layout="constrained")
    grid = figure.subplots(bands * rows, across, squeeze=False)
    panels = []
    for at in range(bands * across):
        band, column = divmod(at, across)
        axes = [grid[band * rows + row][column] for row in range(rows)]
        if at < count:
            axes[0].set_title(run.sections[at].title)
            panels.append(axes)
        else:
            for ax in axes:
                ax.set_visible(False)
    return figure, panels


def say(ax: Axes, text: str) -> None:
    """Fills an axes that has nothing to draw with the reason."""
    ax.text(
        0.5, 0.5, textwrap.fill(text, 36), transform=ax.transAxes, ha="center", va="center",
        color=MUTED, fontsize=10,
    )  # fmt: skip


def left_out(section: Section, drawn: Sequence[Entry], reason: str) -> str:
    """Caption text naming the decoders without a mark, "" when all are drawn."""
    names = {entry.name for entry in drawn}
    absent = [e for e in section.decoders if e.name not in names]
    broken = [e.name for e in absent if e.failed]
    unmeasured = [e.name for e in absent if not e.failed]
    parts = []
    if unmeasured:
        parts.append(f"{', '.join(unmeasured)} ({reason})")
    if broken:
        parts.append(f"{', '.join(broken)} (failed)")
    return f" {section.title}: left out {' and '.join(parts)}." if parts else ""


Labelled = tuple[Axes, list[Label], list[Bbox]]  # labels, and boxes in data units to keep free


def finish(
    name: str, title: str, caption: str, figure: Figure, labels: Sequence[Labelled] = ()
) -> Plot:
    """Writes the caption under the panels, then the labels of points where there is room."""
    width, height = figure.get_size_inches()
    text = textwrap.fill(caption, int(CAPTION * width / WIDTH))
    lines = text.count("\n") + 1
    room = 0.08 + 0.165 * lines  # inches
    figure.set_size_inches(width, height + room)
    rect = (0, room / (height + room), 1, height / (height + room))
    figure.set_layout_engine("constrained", rect=rect, w_pad=0.09, h_pad=0.06)
    figure.text(0.01, 0.04 / height, text, fontsize=8, color=MUTED, va="bottom", linespacing=1.35)
    if labels:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
    for ax, texts, boxes in labels:
        place(ax, texts, [box.transformed(ax.transData).padded(3) for box in boxes], MUTED)
    return Plot(name, title, caption, figure)


def save(plot: Plot, folder: Path) -> tuple[Path, Path]:
    """(svg, png) under `folder`; neither carries a date."""
    svg, png = folder / f"{plot.name}.svg", folder / f"{plot.name}.png"
    with matplotlib.rc_context(RC):
        plot.figure.draw_without_rendering()
        plot.figure.set_layout_engine("none")  # laid out once: saving need not do it again
        _save(plot.figure, svg, metadata={"Date": None})
        _save(plot.figure, png, dpi=160, metadata={"Software": None})
    return svg, png


def _save(figure: Figure, path: Path, **options: Any) -> None:
    kind = path.suffix.removeprefix(".")
    write_atomically(path, lambda file: figure.savefig(file, format=kind, **options))
