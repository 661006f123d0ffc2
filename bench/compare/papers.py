"""`python -m bench papers [model=NAME] [method=NAME] [out=DIR]`: published tables side by side.

The same method on the same target in different papers, and how far their AR baselines lie apart: a
speed-up says as much of its baseline as of its method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.compare import LINE, MARKS, by_paper
from bench.compare.published import DEFAULT, Published, load
from bench.config.words import given
from bench.console import say
from bench.data.errors import ConfigError, unknown
from bench.data.files import ready_folder, write_text
from bench.report.plots.chart import HUES, Chart, Spec, axis, layer, line_of, linked, save, tooltip
from bench.report.table import Column, figures, filled, markdown, terminal

KEYS = ("model", "method", "published", "out")
AR = "AR"
TITLE = "One method in several papers"
CAPTION = (
    "Seconds per image of each paper's AR, and speed-ups over AR as the papers state them; only "
    "methods that several papers measured."
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
        method=NAME     only this method, with AR
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
    if "method" in asked:
        found = of_method(found, asked["method"])
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


def of_method(found: dict[str, list[Line]], method: str) -> dict[str, list[Line]]:
    """The lines of one method and of AR, of the models on which it was measured. Raises
    ConfigError."""
    known = {one.row.method for lines in found.values() for one in lines}
    if method not in known:
        raise ConfigError(unknown("method of several papers", method, sorted(known)))
    kept = {m: [o for o in lines if o.row.method in (AR, method)] for m, lines in found.items()}
    return {m: ls for m, ls in kept.items() if any(o.row.method == method for o in ls)}


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


def draw(found: dict[str, list[Line]]) -> Chart:
    """The chart `papers`: of each model AR's seconds, then the methods' speed-ups."""
    papers = list(dict.fromkeys(one.row.paper for lines in found.values() for one in lines))
    panels = []
    for model, lines in found.items():
        ar = [one for one in lines if one.row.method == AR]
        others = [one for one in lines if one.row.method != AR]
        if ar:
            panels.append(_panel(f"{model}: AR, s/image", ar, "latency_s", papers))
        if others:
            panels.append(_panel(f"{model}: speed-up as stated", others, "speedup", papers))
    return Chart("papers", TITLE, CAPTION, linked(panels, {}, columns=1))


def _panel(title: str, lines: Sequence[Line], figure: str, papers: list[str]) -> Spec:
    names = [*dict.fromkeys(one.row.method for one in lines)]
    rows = [
        {"decoder": o.row.method, "paper": o.row.paper, "figure": o.row.figures[figure]}
        for o in lines
    ]
    x, y = axis("figure", title, zero=figure == "latency_s"), line_of(names)
    said = tooltip(decoder="method", paper="paper", figure="figure")
    drawn = layer({"type": "point", "size": 90, "strokeWidth": 1.8}, rows, x=x, y=y, tooltip=said,
                  color=by_paper(papers, HUES), shape=by_paper(papers, MARKS))  # fmt: skip
    return {"title": title, "height": LINE * len(names), "layer": [drawn]}
