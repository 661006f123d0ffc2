"""`python -m bench papers [model=NAME] [published=FILE] [out=DIR]`: published tables side by side.

The same method on the same target in different papers, and how far their AR baselines lie apart: a
speed-up says as much of its baseline as of its method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.compare.published import DEFAULT, Published, load
from bench.config.words import given
from bench.console import say
from bench.data.errors import ConfigError, unknown
from bench.data.files import ready_folder, write_text
from bench.report.plots.style import HUES, MARKERS, RC, WIDTH, Plot, finish, save
from bench.report.table import Column, figures, filled, markdown, terminal

KEYS = ("model", "published", "out")
AR = "AR"
TITLE = "One method in several papers"
CAPTION = (
    "Left: seconds per image of each paper's AR. Right: speed-ups over AR, as the papers state "
    "them; only methods that several papers measured. Marks: papers."
)


@dataclass(frozen=True)
class Line:
    """A method as one paper measured it. own_ar, best_ar: seconds per image of AR in the same
    table, and of the fastest AR of any paper on the same model, data, size and stated GPU; NaN
    where not known."""

    row: Published
    own_ar: float
    best_ar: float

    @property
    def seconds(self) -> float:
        return self.row.figures.get("latency_s", math.nan)

    @property
    def speedup(self) -> float:
        """As stated."""
        return self.row.figures.get("speedup", math.nan)

    @property
    def over_best(self) -> float:
        """Over the fastest AR that was published for the same work on the same GPU."""
        return self.best_ar / self.seconds


def cmd_papers(words: Sequence[str]) -> int:
    """Published numbers side by side: one method in several papers, and their baselines.
    What several papers measured of a method on one model, and the seconds of their AR.
    Settings:
        model=NAME      only this model, as the papers call it
        published=FILE  another table of published numbers
        out=DIR         also writes papers.md and a picture there
    Example: papers model=Lumina-mGPT-7B

    Raises ConfigError, PublishedError.
    """
    asked = given(words, KEYS, "papers")
    found = side_by_side(load(Path(asked["published"]) if "published" in asked else DEFAULT))
    if "model" in asked:
        if asked["model"] not in found:
            raise ConfigError(unknown("model of several papers", asked["model"], [*found]))
        found = {asked["model"]: found[asked["model"]]}
    tables = [filled(COLUMNS, lines, model) for model, lines in found.items()]
    say("\n\n".join([*map(terminal, tables), LEGEND]))
    if "out" in asked:
        folder = Path(asked["out"])
        ready_folder(folder)
        parts = [f"## {table.title}\n\n{markdown(table)}" for table in tables]
        write_text(folder / "papers.md", "\n\n".join([f"# {TITLE}", *parts, LEGEND]) + "\n")
        for path in save(draw(found), folder):
            say(f"wrote {path}")
    return 0


def side_by_side(rows: Sequence[Published]) -> dict[str, list[Line]]:
    """Model -> lines of AR and of the methods that several papers measured on it, by method and
    seconds. AR's lines are those with seconds."""
    sampled = [r for r in rows if r.model and r.baseline == AR and r.temperature != 0]
    found: dict[str, list[Line]] = {}
    for model in dict.fromkeys(row.model for row in sampled):
        mine = [row for row in sampled if row.model == model]
        timed = [r for r in mine if r.method == AR and "latency_s" in r.figures]
        speeds = [r for r in mine if r.method != AR and "speedup" in r.figures]
        papers = {m: {r.paper for r in speeds if r.method == m} for m in {r.method for r in speeds}}
        shared = sorted((r for r in speeds if len(papers[r.method]) > 1), key=lambda r: r.method)
        if shared or len({r.paper for r in timed}) > 1:
            lines = [_line(row, timed) for row in [*timed, *shared]]
            found[model] = sorted(
                lines, key=lambda o: (o.row.method != AR, o.row.method, o.seconds)
            )
    return found


def _order(one: Line) -> tuple[bool, str, float]:
    return one.row.method != AR, one.row.method, one.seconds


def _line(row: Published, timed: Sequence[Published]) -> Line:
    same = [ar for ar in timed if _work(ar) == _work(row)]
    own = [ar.figures["latency_s"] for ar in same if ar.paper == row.paper]
    alike = [ar.figures["latency_s"] for ar in same if ar.gpu and ar.gpu == row.gpu]
    return Line(row, min(own, default=math.nan), min(alike, default=math.nan))


def _work(row: Published) -> tuple[str, float | None]:
    """Data (`MS-COCO` for each way of writing it) and size of the images."""
    return row.dataset.split(" ")[0], row.resolution


COLUMNS = (
    Column("", "method", lambda o: o.row.label, words=True),
    Column("", "paper", lambda o: f"{o.row.paper} ({o.row.arxiv})", words=True),
    Column("", "data", lambda o: o.row.dataset, words=True),
    Column("", "px", lambda o: figures(0)(o.row.resolution or math.nan)),
    Column("", "GPU", lambda o: o.row.gpu or "not stated", words=True),
    Column("seconds", "s/image", figures(1)),
    Column("own_ar", "its AR, s/image", figures(1)),
    Column("speedup", "speed-up as stated", figures(2)),
    Column("over_best", "over the fastest AR", figures(2)),
)
LEGEND = (
    "Over the fastest AR: of all papers with the same model, data, size and stated GPU. "
    "Temperature 0 is left out. Sources are in results/published/published.csv."
)


def draw(found: dict[str, list[Line]]) -> Plot:
    """The picture `papers`: a band per model."""
    papers = list(dict.fromkeys(one.row.paper for lines in found.values() for one in lines))
    looks = {p: (HUES[i % len(HUES)], MARKERS[i % len(MARKERS)]) for i, p in enumerate(papers)}
    methods = {m: [*dict.fromkeys(o.row.method for o in lines)] for m, lines in found.items()}
    counts = [max(len(names), 2) for names in methods.values()]
    with matplotlib.rc_context(RC):
        height = 0.34 * sum(counts) + 0.8 * len(counts) + 0.6
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = figure.subplots(
            len(found), 2, squeeze=False, height_ratios=counts, width_ratios=[1, 1.6]
        )
        for (left, right), (model, lines) in zip(grid, found.items(), strict=True):
            left.set_title(model)
            _seconds(left, [one for one in lines if one.row.method == AR], looks)
            _speedups(right, [one for one in lines if one.row.method != AR], looks)
        marks = [
            matplotlib.lines.Line2D([], [], color=color, marker=marker, ls="", label=paper)
            for paper, (color, marker) in looks.items()
        ]
        figure.legend(handles=marks, loc="outside upper center", ncols=6)
        return finish("papers", TITLE, CAPTION, figure)


Looks = dict[str, tuple[str, str]]


def _seconds(ax: Axes, lines: Sequence[Line], looks: Looks) -> None:
    for one in lines:
        color, marker = looks[one.row.paper]
        ax.plot(one.seconds, 0, color=color, marker=marker, ls="")
    ax.set_yticks([0], [AR])
    ax.set_xlim(left=0)
    ax.set_xlabel("s/image")
    ax.grid(axis="x")


def _speedups(ax: Axes, lines: Sequence[Line], looks: Looks) -> None:
    names = [*dict.fromkeys(one.row.method for one in lines)]
    for one in lines:
        color, marker = looks[one.row.paper]
        ax.plot(one.speedup, names.index(one.row.method), color=color, marker=marker, ls="")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.axvline(1, color="#6b6b6b", lw=0.8)
    ax.set_xlabel("speed-up over AR, as stated")
    ax.grid(axis="x")
