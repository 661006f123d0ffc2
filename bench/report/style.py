"""What all figures share: size, fonts, colours of decoders, markers of verdicts, labels and files.

A figure is 5 inches wide, so that its words can be read on a page of 400 pixels. Colours are Okabe
and Ito's, two of Tol's after them: colour-blind readers tell them apart. On the page a figure is
SVG without a background, and its words have the colour of the page's text, in light and in dark.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.analyse.run import Entry, Role, Run, Section
from bench.files import write_bytes
from bench.report.fonts import FIRST, fallback_fonts
from bench.report.table import columns_of
from metrics.stats import Interval

Points = Mapping[str, tuple[float, float]]  # what to write next to which points
WIDTH, PIXELS = 5.0, 1280  # of a figure: inches, and pixels of its PNG
SMALL = 10  # points of words inside axes
LINE, KEY = 0.28, 0.22  # inches: height of a decoder's line, and of a line of the key
MANY = 8  # decoders, above which some have a number in a figure and their name in its key
BELOW = 0.55  # inches below axes that their ticks and label take
INK, MUTED = "#222222", "#808080"  # MUTED can be read on white and on black
PAPER = "#fffffe"  # behind names; on the page its colour
HUES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6655bb", "#aa4466",
)  # fmt: skip
MARKERS = {"exact": "o", "exact as far as sampled": "s", "relaxed": "D", "broken": "X"}
NOT_JUDGED = "^"
MARKS = {*MARKERS.values(), NOT_JUDGED}  # of points
STYLE: Any = {
    "font.family": [FIRST, *fallback_fonts()], "font.size": 11, "axes.titlesize": 11,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.labelsize": 11,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": MUTED,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "grid.color": MUTED, "grid.alpha": 0.3, "grid.linewidth": 0.6, "legend.fontsize": 10.5,
    "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 6,
    "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "lantern-bench",
    "pdf.fonttype": 42, "figure.constrained_layout.h_pad": 0.08,
}  # fmt: skip
CLOSE = 8  # points from a mark to its name, up or down
PLACES = [  # of a name, in points from its mark; the first ones are the best
    (dx, dy)
    for up in (CLOSE, 17, 26, 38, 52, 68, 86)
    for aside in (6, 30, 60, 95)
    for dy in (up, -up)
    for dx in (aside, -aside)
    if up > CLOSE or aside == 6
]
LEAD = 5  # points: what a line that leads to a name costs, times its length
STRUCK = 12  # points: a bar behind a name costs as much as another name of this height
ABOVE = 5  # zorder of marks and lines that no name hides
LEADER = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}


@dataclass(frozen=True)
class Plot:
    """name: file stem; caption: below it on the page, says what was left out."""

    name: str
    title: str
    caption: str
    figure: Figure

    @property
    def first(self) -> float:
        """The share of its height that its first axes take, their x axis included."""
        below = self.figure.axes[0].get_position().y0 - BELOW / self.figure.get_figheight()
        return float(1 - max(below, 0))


@dataclass(frozen=True)
class Panel:
    """One pair of axes. height: inches; draw: fills it, and returns what to write at its points."""

    title: str
    height: float
    draw: Callable[[Axes], Points]


@contextmanager
def styled() -> Iterator[None]:
    """Draws inside in this style alone, whatever the user's matplotlibrc asks for. Of letters that
    no font has `warn_of_missing_letters` says so once."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


@styled()
def plot(
    name: str, title: str, caption: str, panels: Sequence[Panel], handles: Sequence[Any] = ()
) -> Plot | None:
    """Draws panels below each other; None without one. handles: of the key below them."""
    if not panels:
        return None
    heights = [max(panel.height, 0.5) for panel in panels]
    widest = max((columns_of(handle.get_label()) for handle in handles), default=0)
    columns = 3 if widest <= 12 else 2 if widest <= 24 else 1
    key = KEY * math.ceil(len(handles) / columns)
    figure = Figure((WIDTH, sum(heights) + 0.75 * len(heights) + 0.1 + key), layout="constrained")
    every = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    names = []
    for panel, axes in zip(panels, every, strict=True):
        axes.set_title(panel.title if len(panels) > 1 else "")
        names.append(panel.draw(axes))
    if handles:
        figure.legend(
            handles=[*handles],
            loc="outside lower left",
            ncols=columns,
            columnspacing=1.2,
            handletextpad=0.5,
        )
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels do not move the axes
    for axes, points in zip(every, names, strict=True):
        write_labels(axes, points)
    return Plot(name, title, caption, figure)


def write_labels(axes: Axes, points: Points) -> None:
    """Writes names next to points, where they cover each other, other marks, bars and lines the
    least; a line leads to one that is not close, and what is behind a name is hidden (`ABOVE` is
    not). Earlier names choose first."""
    if not points:
        return
    for spine in axes.spines.values():
        spine.set_zorder(ABOVE)
    figure: Any = axes.figure
    scale, frame = figure.dpi / 72, axes.get_window_extent().get_points()  # [2 corners, xy]
    spots = {name: axes.transData.transform(place) for name, place in points.items()}
    drawn = [line.get_xydata() for line in axes.lines if line.get_marker() in MARKS]
    marks = axes.transData.transform(np.concatenate([[*points.values()], *drawn]))  # [n, xy]
    taken = np.empty((0, 2, 2))  # boxes of names: [n, 2 corners, xy]
    paths: list[Any] = [
        line.get_xydata() for line in axes.lines if line.get_linestyle() in ("-", "--")
    ]
    for bars in axes.collections:
        paths += bars.get_segments() if isinstance(bars, LineCollection) else []
    pixels = [axes.transData.transform(path) for path in paths if len(path) > 1]
    pairs = [np.stack([path[:-1], path[1:]], 1) for path in pixels]
    segments = np.concatenate([np.empty((0, 2, 2)), *pairs])  # [n, 2 ends, xy]
    for name, point in points.items():
        probe = axes.annotate(name, point, fontsize=SMALL)
        size, places = probe.get_window_extent().size, []
        probe.remove()
        others = marks[~np.isclose(marks, spots[name]).all(1)][:, None]
        others = others + CLOSE * scale * np.array([[-1], [1]])  # [n, 2 corners, xy]
        for at, (dx, dy) in enumerate(PLACES):
            spot, far = spots[name], abs(dy) > CLOSE
            corner = spot + np.array([dx, dy]) * scale - size * np.array([dx < 0, 0.5])
            if far:  # a long name is moved into the frame
                corner[0] = max(frame[0, 0], min(corner[0], frame[1, 0] - size[0]))
            box = np.stack([corner, corner + size])
            cost = 10 * overlap(box, taken) + overlap(box, others)
            cost += 1e3 * max(*(frame[0] - box[0]), *(box[1] - frame[1]), 0)  # is cut off
            end = [np.clip(spot[0], *box[:, 0]), box[int(dy < 0), 1]]
            leader = np.array([[spot, end]])[:far]  # [1 or 0, 2 ends, xy]
            cost += 10 * scale * covered(leader, np.concatenate([taken, others]))
            cost += scale * STRUCK * covered(segments, box[None])
            cost += LEAD * np.hypot(dx, dy) * scale**2 * far
            places.append((cost, at, box, leader))
        _, _, box, leader = min(places, key=lambda place: place[:2])
        taken, segments = np.concatenate([taken, box[None]]), np.concatenate([segments, leader])
        arrow = None
        for _, end in leader:
            arrow = LEADER | {"relpos": tuple((end - box[0]) / size)}
        axes.annotate(
            name,
            point,
            tuple((box[0] - spots[name]) / scale),
            textcoords="offset points",
            fontsize=SMALL,
            va="bottom",
            ha="left",
            arrowprops=arrow,
            zorder=ABOVE - 1,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
        )


def overlap(box: np.ndarray, others: np.ndarray) -> float:
    """The area that a box, [2 corners, xy], shares with others, [n, 2 corners, xy], in pixels."""
    shared = np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0])
    return float(shared.clip(0).prod(1).sum())


def covered(segments: np.ndarray, boxes: np.ndarray) -> float:
    """The length of segments, [n, 2 ends, xy], inside boxes, [m, 2 corners, xy], in pixels."""
    start, step = segments[:, 0], segments[:, 1] - segments[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = (boxes[:, :, None] - start) / step  # [m, 2, n, xy]
    parallel = step == 0
    within = (start >= boxes[:, 0, None]) & (start <= boxes[:, 1, None])  # [m, n, xy]
    enter = np.where(parallel, np.where(within, -np.inf, np.inf), ends.min(1)).max(-1).clip(0)
    leave = np.where(parallel, np.inf, ends.max(1)).min(-1).clip(max=1)  # [m, n]
    return float(((leave - enter).clip(0) * np.hypot(*step.T)).sum())


def colors_of(run: Run) -> dict[str, str]:
    """Assigns a colour to each decoder, the same one to those of a family; AR is grey, and hues
    repeat."""
    family = {line["decoder"]: line["family"] for line in run.lines("families")}
    colors, hues = dict[str, str](), cycle(HUES)
    for entry in run.entries:
        key = family.get(entry.name, entry.name)
        if key not in colors:
            colors[key] = MUTED if entry.role is Role.BASELINE else next(hues)
        colors[entry.name] = colors[key]
    return colors


def verdict_of(entry: Entry) -> str:
    verdict = entry.text("exactness").partition(" (")[0]
    return verdict if verdict in MARKERS else "not judged"


def draw(axes: Axes, entry: Entry, color: str, x: float | Interval, y: float | Interval) -> None:
    """Draws a decoder's mark, in the shape of its verdict, with its intervals as error bars."""
    at, up = (one.value if isinstance(one, Interval) else one for one in (x, y))
    errors: dict[str, Any] = {}
    for side, one in (("x", x), ("y", y)):
        if isinstance(one, Interval):  # an end that is not known has no bar
            ends = np.nan_to_num([one.value - one.lo, one.hi - one.value])
            errors[f"{side}err"] = ends.clip(min=0)[:, None]  # [2, 1]
    marker = MARKERS.get(verdict_of(entry), NOT_JUDGED)
    mark = axes.errorbar(
        at,
        up,
        fmt=marker,
        color=color,
        elinewidth=1.1,
        capsize=2,
        markeredgecolor="white",
        markeredgewidth=0.8,
        zorder=3,
        **errors,
    )[0]
    mark.set_zorder(ABOVE)


def verdict_handles(entries: Iterable[Entry]) -> list[Any]:
    """Makes the handles of a key: which marker is which verdict of these decoders."""
    names = dict.fromkeys(verdict_of(e) for e in entries if not e.failed)
    return [_handle(name, MUTED, name) for name in names]


def _handle(verdict: str, color: str, label: str) -> Line2D:
    marker = MARKERS.get(verdict, NOT_JUDGED)
    return Line2D([], [], marker=marker, color=color, linestyle="", label=label)


def numbers_of(run: Run, named: Container[str], drawn: Sequence[Collection[str]]) -> dict[str, str]:
    """Numbers for decoders in the order of the run: for those that are not `named`, in panels of
    more than `MANY`. drawn: the decoders of every panel."""
    crowded = {name for panel in drawn if len(panel) > MANY for name in panel if name not in named}
    names = [entry.name for entry in run.entries if entry.name in crowded]
    return {name: f"{number}" for number, name in enumerate(names, 1)}


def number_handles(run: Run, numbers: Mapping[str, str]) -> list[Any]:
    """Makes the handles of a key: which decoder has which number, with its mark."""
    colors = colors_of(run)
    return [
        _handle(verdict_of(e), colors[e.name], f"{numbers[e.name]}  {e.name}")
        for e in run.entries
        if e.name in numbers
    ]


def left_out_note(section: Section, drawn: Iterable[str]) -> str:
    """Names decoders without a mark, for a caption; "" when all are drawn."""
    names = {*drawn}
    missing = [e.name for e in section.decoders if e.name not in names]
    return f" Not shown, as not measured: {', '.join(missing)}." if missing else ""


@styled()
def save(plot: Plot, folder: Path) -> None:
    """Writes a plot as PNG and as PDF, the same bytes for the same figure."""
    for ending, metadata in (("png", None), ("pdf", {"CreationDate": None})):
        file = io.BytesIO()
        plot.figure.savefig(file, format=ending, metadata=metadata, dpi=PIXELS / WIDTH)
        write_bytes(folder / f"{plot.name}.{ending}", file.getvalue())


@styled()
def inline(plot: Plot) -> Markup:
    """Turns the figure into an SVG element of a page: as wide as there is room, transparent, its
    words in the colour of the text around it, without ids that another figure has too."""
    file = io.StringIO()
    plot.figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="\w+_\d+"', "", text).replace(INK, "currentColor")
    text = text.replace(PAPER, "var(--paper)")
    head = Markup('<svg role="img" aria-label="{}"').format(plot.title)
    return head + Markup(re.sub(r'^<svg| (?:width|height)="[\d.]+pt"', "", text, count=3))
