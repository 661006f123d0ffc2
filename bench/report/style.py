"""What all figures share: size, fonts, colours of decoders, markers of verdicts, labels and files.

A figure is 6.4 inches wide: its PNG has 1,280 pixels, and at 400 its words can still be read.
Colours are Okabe and Ito's, two of Tol's after them: colour-blind readers tell them apart. Every
mark is also named directly. On the page a figure is SVG without a background, and its words have
the colour of the page's text, in light and in dark.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from markupsafe import Markup

from bench.data.files import write_bytes
from bench.records.run_data import Entry, Role, RunData, Section
from metrics.stats import UNKNOWN, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")
Box = tuple[float, float, float, float]  # x0, y0, x1, y1
WIDTH = 6.4  # inches
SMALL = 10  # points of words inside axes
LINE, LETTER = 0.29, 0.086  # inches: height of a decoder's line, width of a letter
FORMATS = ("png", "svg", "pdf")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
INK, MUTED = "#222222", "#808080"  # MUTED can be read on white and on black
HUES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6655bb", "#aa4466",
)  # fmt: skip
MARKERS = {"exact": "o", "exact as far as sampled": "s", "relaxed": "D", "broken": "X"}
NOT_JUDGED = "^"
STYLE: Any = {
    "font.family": ["DejaVu Sans"], "font.size": 11, "axes.titlesize": 11,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.labelsize": 11,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": MUTED,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "grid.color": MUTED, "grid.alpha": 0.3, "grid.linewidth": 0.6, "legend.fontsize": 10.5,
    "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 6,
    "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "lantern-bench",
    "pdf.fonttype": 42, "figure.constrained_layout.h_pad": 0.08,
}  # fmt: skip
PLACES = [  # of a label, in points from its mark; the first ones are the best
    (dx, dy * r) for r, far in ((8, 0), (20, 6), (34, 12), (50, 20)) for dy in (1, -1)
    for dx in (7 + far, -7 - far)
]  # fmt: skip
LEADER = 15  # points from which on a line leads to a label


@dataclass(frozen=True)
class Plot:
    """name: file stem; caption: below it on the page, says what was left out and why."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Marks:
    """What was drawn of a section. entries: those that have a mark; names: what to write next to
    points."""

    entries: Sequence[Entry]
    names: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def with_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Runs a function with the style of all figures."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return inside


def panels(heights: Sequence[float]) -> tuple[Figure, list[list[Axes]]]:
    """A figure, and its axes row by row. heights: of each row's axes, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [max(height, 0.5) for height in heights]
    size = (WIDTH, sum(heights) + 0.75 * len(heights) + 0.3)
    figure = Figure(size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(heights), squeeze=False, height_ratios=heights)
    return figure, grid.tolist()


@with_style
def by_section(
    name: str, title: str, caption: str, sections: Sequence[Section], height: Sequence[float],
    draw: Callable[[Section, Axes], Marks], absent: str, handles: Sequence[Any] = (),
) -> Plot | None:  # fmt: skip
    """A figure with a row per section, under its title where there are several; None without a
    section. height: of each row; absent: why a decoder may have no mark; handles: of the key, read
    after drawing."""
    if not sections:
        return None
    figure, rows = panels(height)
    names = []
    for section, (axes,) in zip(sections, rows, strict=True):
        axes.set_title(section.title if len(sections) > 1 else "")
        drawn = draw(section, axes)
        names.append((axes, drawn.names))
        caption += omissions(section, drawn.entries, absent)
    key(figure, handles)
    for axes, points in names:
        if points:
            label(axes, points)
    return Plot(name, title, caption, figure)


@dataclass(frozen=True)
class Bar:
    """Parts (width, colour) from left to right, and the text right of them: without parts why there
    are none. ends: an interval; pale: the figure is noise."""

    text: str
    parts: Sequence[tuple[float, str]] = ()
    ends: Interval = UNKNOWN
    pale: bool = False


def bars(
    run: RunData, name: str, title: str, caption: str, bar: Callable[[Section, Entry], Bar],
    axis: str, absent: str, handles: Sequence[Any] = (), line: float = math.nan,
) -> Plot | None:  # fmt: skip
    """A line per decoder. axis: what the bars measure; line: a dotted one at a value."""

    def draw(section: Section, axes: Axes) -> Marks:
        entries = section.decoders
        drawn = [Bar("failed") if e.failed else bar(section, e) for e in entries]
        ends = [_bar(axes, at, *one) for at, one in enumerate(zip(entries, drawn, strict=True))]
        names = [entry.name for entry in entries]
        inches = WIDTH - 0.4 - LETTER * max(map(len, names))
        words = LETTER * max(len(one.text) for one in drawn) + 0.15
        axes.set(xlim=(0, (max(ends) or 1) / (1 - words / inches)), xlabel=axis)
        axes.set(ylim=(len(entries) - 0.4, -0.6), yticks=range(len(entries)), yticklabels=names)
        axes.tick_params(axis="y", length=0)
        if math.isfinite(line):
            axes.axvline(line, color=MUTED, linewidth=0.8, linestyle=":")
        return Marks([e for e, one in zip(entries, drawn, strict=True) if one.parts])

    tall = [LINE * len(section.decoders) for section in run.sections]
    return by_section(name, title, caption, run.sections, tall, draw, absent, handles)


def _bar(axes: Axes, line: int, entry: Entry, bar: Bar) -> float:
    """Draws a decoder's bar; where it ends."""
    end = 0.0
    for width, color in bar.parts:
        axes.barh(line, width, 0.64, end, color=color, alpha=0.4 if bar.pale else 1)
        end += width
    if math.isfinite(bar.ends.lo):
        point(axes, entry, INK, bar.ends, line, markersize=5)
        end = max(end, bar.ends.hi)
    axes.annotate(bar.text, (end, line), (6, 0), textcoords="offset points", va="center",
                  fontsize=SMALL, color=INK if bar.parts else MUTED)  # fmt: skip
    return end


def colors_of(run: RunData) -> dict[str, str]:
    """Decoder -> colour: one for a composition at every temperature; AR is grey, hues repeat."""
    colors: dict[tuple[str, ...], str] = {}
    hues = cycle(HUES)
    for entry in run.entries:
        if entry.part_key not in colors and entry.role is not Role.RESEED:
            colors[entry.part_key] = MUTED if entry.role is Role.BASELINE else next(hues)
    return {e.name: colors[e.part_key] for e in run.entries if e.part_key in colors}


def kind(entry: Entry) -> str:
    """A decoder's verdict without its figure."""
    verdict = entry.text("exactness").partition(" (")[0]
    return verdict if verdict in MARKERS else "not judged"


def point(
    axes: Axes, entry: Entry, color: str, x: float | Interval, y: float | Interval, **how: Any
) -> None:
    """A decoder's mark, in the shape of its verdict, with its intervals as error bars."""
    at, up = (one.value if isinstance(one, Interval) else one for one in (x, y))
    look: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.8, "zorder": 3} | how
    look |= {f"{side}err": errors(one) for side, one in (("x", x), ("y", y))
             if isinstance(one, Interval)}  # fmt: skip
    marker = MARKERS.get(kind(entry), NOT_JUDGED)
    axes.errorbar(at, up, fmt=marker, color=color, elinewidth=1.1, capsize=2, **look)


def errors(figure: Interval) -> list[list[float]]:
    """The two lengths of an error bar; an end that is not known has none."""
    sides = (figure.value - figure.lo, figure.hi - figure.value)
    return [[max(side, 0.0) if math.isfinite(side) else 0.0] for side in sides]


def verdicts(entries: Iterable[Entry]) -> list[Any]:
    """Handles of a key: which marker is which verdict of these decoders."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], marker=MARKERS.get(name, NOT_JUDGED), color=MUTED, linestyle="", label=name)
        for name in dict.fromkeys(kind(e) for e in entries if not e.failed)
    ]


def key(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend below the figure."""
    if handles:
        figure.legend(handles=[*handles], loc="outside lower left", ncols=min(len(handles), 4),
                      columnspacing=1.2, handletextpad=0.5)  # fmt: skip


def label(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Writes names next to points, where they cover each other and other points the least. Call it
    last: it needs the final layout."""
    figure: Any = axes.figure
    freeze_layout(figure)
    scale, frame = figure.dpi / 72, axes.get_window_extent()
    spots = {name: axes.transData.transform(place) for name, place in points.items()}
    taken = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale)
             for x, y in spots.values()]  # fmt: skip
    for name, (x, y) in spots.items():
        text = axes.annotate(name, points[name], (0, 0), textcoords="offset points", fontsize=SMALL)
        size = text.get_window_extent()
        places: list[tuple[float, int, Box]] = []
        for dx, dy in PLACES:
            left = x + dx * scale - (size.width if dx < 0 else 0)
            low = y + dy * scale - size.height / 2
            box = (left, low, left + size.width, low + size.height)
            outside = max(frame.x0 - box[0], box[2] - frame.x1, 0)
            outside += max(frame.y0 - box[1], box[3] - frame.y1, 0)
            cost = sum(_overlap(box, other) for other in taken) + 1e3 * outside
            places.append((cost, len(places), box))
        _, best, box = min(places)
        taken.append(box)
        dx, dy = PLACES[best]
        text.set(position=(dx, dy), ha="right" if dx < 0 else "left", va="center")
        text.set_in_layout(False)
        if abs(dy) > LEADER:
            axes.annotate(
                "", points[name], (dx, dy), textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.6, "shrinkA": 0},
            ).set_in_layout(False)  # fmt: skip


def freeze_layout(figure: Figure) -> None:
    """Lays the figure out for good: what is drawn later does not move its axes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _overlap(a: Box, b: Box) -> float:
    """The area that two boxes share."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)


def omissions(section: Section, drawn: Sequence[Entry], reason: str) -> str:
    """Caption text naming the decoders without a mark, "" when all are drawn."""
    names = {entry.name for entry in drawn}
    missing: dict[str, list[str]] = {}
    for entry in sorted(section.decoders, key=lambda e: e.failed):
        if entry.name not in names:
            missing.setdefault("failed" if entry.failed else reason, []).append(entry.name)
    parts = [f"{', '.join(absent)} ({why})" for why, absent in missing.items()]
    return f" {section.title}: left out {' and '.join(parts)}." if parts else ""


def unfair(run: RunData) -> str:
    """Text for the caption of a plot of speed-ups, "" where no baseline is unfair."""
    decoders = [e for e in run.entries if e.role is Role.DECODER and not run.unmeasured(e)]
    names = [e.name for e in decoders if run.mark(e)]
    return f" Against an unfair baseline (see the table): {', '.join(names)}." if names else ""


@with_style
def save(plot: Plot, folder: Path) -> dict[str, Path]:
    """Format -> file, of `FORMATS`; the same bytes for the same figure."""
    from PIL import Image

    freeze_layout(plot.figure)
    paths = {}
    for ending in FORMATS:
        file, path = io.BytesIO(), folder / f"{plot.name}.{ending}"
        plot.figure.savefig(
            file, format=ending, metadata=UNDATED.get(ending), facecolor="white", dpi=200
        )
        if ending == "png":  # few colours: a palette takes a third of the bytes
            with Image.open(file) as drawn:
                few = drawn.convert("RGB").quantize(64)
            file = io.BytesIO()
            few.save(file, "PNG", optimize=True)
        write_bytes(path, file.getvalue())
        paths[ending] = path
    return paths


@with_style
def inline(plot: Plot) -> Markup:
    """The figure as an SVG element of a page: as wide as there is room, transparent, its words in
    the colour of the text around it, without ids that another figure has too."""
    freeze_layout(plot.figure)
    file = io.StringIO()
    plot.figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="\w+_\d+"', "", text).replace(INK, "currentColor")
    head = Markup('<svg role="img" aria-label="{}"').format(plot.title)
    return head + Markup(re.sub(r'^<svg| (?:width|height)="[\d.]+pt"', "", text, count=3))
