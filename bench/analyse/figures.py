"""Every figure of a decoder, once: name, unit, meaning, how it is computed, and how it prints.

A figure is computed from a `Line`. summary.csv, `bench list columns`, the tables of a report, and
the figures by category of prompt are made of this list. An interval has two columns more, `_lo` and
`_hi`. To add a figure is to add an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np

from bench.analyse.line import Line, ratio
from bench.store.columns import ROW
from metrics.scores import Scores
from metrics.stats import NO_INTERVAL, Interval

Value = Interval | float | str
TEXT, NUMBER, INTERVAL = "text", "float", "interval"
# Tables of a report: decoders side by side, their quality, their parts, TV, ambiguity.
MAIN, QUALITY, PARTS, BOUNDS, AMBIGUITY = "main", "quality", "parts", "bounds", "ambiguity"


@dataclass(frozen=True)
class Figure:
    """One figure. kind: text, float or interval; unit: "-" where it has none; heading: above its
    column of a report, in which {fid} and {clip} stand for the names of these scores; digits:
    decimals of a report, None for those that its interval allows; group: the table of a report that
    has it, "" for none; rank: its place there, else that of this list; exported: whether
    summary.csv has it."""

    name: str
    kind: str
    unit: str
    meaning: str
    compute: Callable[[Line], Any] | None
    heading: str = ""
    digits: int | None = 2
    group: str = ""
    rank: int = 0
    exported: bool = True

    def of(self, line: Line) -> Value:
        """Its value, of its kind: a text, a number or an interval."""
        value: Any = None if self.compute is None else self.compute(line)
        if self.kind == TEXT:
            return "" if value is None or value != value else str(value)
        return value if isinstance(value, Interval) else float(value)

    def columns(self) -> list[tuple[str, str, str, str]]:
        """Name, type, unit and meaning of its columns in a table."""
        if self.kind != INTERVAL:
            return [(self.name, self.kind, self.unit, self.meaning)]
        return [
            (self.name, NUMBER, self.unit, self.meaning),
            (f"{self.name}_lo", NUMBER, self.unit, "lower end of its 95 % interval"),
            (f"{self.name}_hi", NUMBER, self.unit, "upper end"),
        ]


def cells(values: Mapping[str, Value]) -> dict[str, float | str]:
    """A row of a table: an interval has a column for itself and one for each end."""
    row = dict[str, float | str]()
    for name, value in values.items():
        if isinstance(value, Interval):
            row |= {name: value.value, f"{name}_lo": value.lo, f"{name}_hi": value.hi}
        else:
            row[name] = value
    return row


def of_rows(name: str, heading: str = "") -> Figure:
    """A column that is the same in all rows of a decoder."""
    (column,) = (one for one in ROW if one.name == name)
    text = column.name, column.type, column.unit, column.meaning
    return Figure(*text, lambda x: x.rows[name].iloc[0], heading, group=PARTS if heading else "")


FIGURES = (
    *map(of_rows, ("study", "model")),
    Figure("decoder", TEXT, "-", "name of the decoder in the study", lambda x: x.name),
    *map(of_rows, ("loop", "drafter")),
    of_rows("acceptance", "acceptance"),
    of_rows("tree", "tree"),
    *map(of_rows, ("backend", "device", "dtype", "temperature", "cfg")),
    # ---- time
    Figure("n_latency", NUMBER, "images", "timed one at a time",
           lambda x: x.timed.prompt_index.nunique(), "images timed", 0, PARTS),
    Figure("latency_mean_s", NUMBER, "s", "mean per image",
           lambda x: x.seconds.mean(), "s/image", 3, MAIN, 3),
    Figure("latency_p50_s", NUMBER, "s", "median per image", lambda x: np.median(x.seconds)),
    Figure("latency_p95_s", NUMBER, "s", "95 % quantile per image",
           lambda x: np.quantile(x.seconds, 0.95)),
    Figure("speedup", INTERVAL, "-", "over the baseline of the same temperature and guidance",
           lambda x: x.speedup.interval() if x.speedup else NO_INTERVAL, "speed-up", 2, MAIN, 2),
    Figure("speedup_blocks", NUMBER, "blocks", "of prompts that it is made from",
           lambda x: x.of_speedup("blocks")),
    Figure("speedup_least", NUMBER, "-", "least of the blocks",
           lambda x: x.of_speedup("least"), "speed-up over blocks", 2, PARTS),
    Figure("speedup_greatest", NUMBER, "-", "greatest of the blocks",
           lambda x: x.of_speedup("greatest")),
    # ---- codes
    Figure("mal", INTERVAL, "codes", "per target forward, pooled over images",
           lambda x: x.codes_per_forward, "codes per forward", 2, MAIN, 4),
    Figure("mal_no_bonus", NUMBER, "drafts", "accepted per target forward",
           lambda x: x.per_forward("mal_no_bonus")),
    Figure("nfe", NUMBER, "-", "target forwards per image",
           lambda x: ratio(x.images.nfe.sum(), len(x.images)), "NFE", 1, PARTS),
    # ---- quality
    Figure("n_quality", NUMBER, "images", "of the quality protocol",
           lambda x: len(x.drawn), "images judged", 0, QUALITY),
    Figure("clip_less_baseline", INTERVAL, "-", "CLIP score less the baseline's, prompt by prompt",
           lambda x: x.clip_difference, "{clip} - AR", 2, QUALITY, exported=False),
    Figure("fid", INTERVAL, "-", "FID", lambda x: x.score("fid"), "{fid}", 2, QUALITY),
    Figure("fid_debiased", INTERVAL, "-", "FID extrapolated to infinitely many images",
           lambda x: x.score("fid_debiased"), "FID without bias", 2, QUALITY),
    Figure("fid_features", TEXT, "-", "network that FID is made with",
           lambda x: x.scores["fid"].features),
    Figure("kid", INTERVAL, "-", "KID", lambda x: x.score("kid"), "KID", None, QUALITY),
    Figure("precision", INTERVAL, "-", "share of images close to real ones",
           lambda x: x.score("precision"), "precision", 3, QUALITY),
    Figure("recall", INTERVAL, "-", "share of real images close to some image",
           lambda x: x.score("recall"), "recall", 3, QUALITY),
    Figure("clip", INTERVAL, "-", "100 times the cosine of image and caption",
           lambda x: x.score("clip"), "{clip}", 2, MAIN, 5),
    Figure("hps", INTERVAL, "-", "HPSv2.1, 100 times the cosine of image and caption",
           lambda x: x.score("hps"), "HPS", 2, QUALITY),
    # ---- the law of the output
    Figure("tv_bound", NUMBER, "-", "greatest bound declared on TV(p, p_A) at a code",
           lambda x: x.tv_shift[2], "bound on TV(p, p_A), max", 3, BOUNDS),
    Figure("tv_shift_mean", NUMBER, "-", "TV(p, p_A) per code, mean",
           lambda x: x.tv_shift[0], "TV(p, p_A), mean", 4, BOUNDS),
    Figure("tv_shift_max", NUMBER, "-", "TV(p, p_A) per code, greatest",
           lambda x: x.tv_shift[1], "TV(p, p_A), max", 3, BOUNDS),
    Figure("tv_output", INTERVAL, "-", "output TV per committed code; 0 of bonus and first codes",
           lambda x: x.tv_output, "output TV", 3, MAIN, 7),
    Figure("tv_output_bound", NUMBER, "-", "what the rule's acceptance allows, per committed code",
           lambda x: x.per_code("tv_output_bound")),
    Figure("tv_tested", NUMBER, "-", "output TV per code at which a draft was tested, mean",
           lambda x: x.per_pair("tv_output"), "TV, tested codes", 3, BOUNDS),
    Figure("tv_declared_bound", NUMBER, "-", "what the rule declares per such code, mean",
           lambda x: x.per_pair("tv_declared_bound"), "declared bound", 3, BOUNDS),
    # ---- ambiguity
    Figure("target_top_1", INTERVAL, "-", "mass of the target's likeliest code at recorded pairs",
           lambda x: x.mass("target", 1), "target's top 1", 3, AMBIGUITY),
    Figure("target_top_10", INTERVAL, "-", "of its 10 likeliest",
           lambda x: x.mass("target", 10), "top 10", 3, AMBIGUITY),
    Figure("target_top_100", INTERVAL, "-", "of its 100 likeliest",
           lambda x: x.mass("target", 100), "top 100", 3, AMBIGUITY),
    Figure("target_entropy", INTERVAL, "bits", "of the target's distribution there, mean",
           lambda x: x.entropy("target")),
    Figure("target_codes", NUMBER, "codes", "2 to the power of the target's entropy",
           lambda x: 2 ** x.entropy("target").value, "target's effective codes", 1, AMBIGUITY,
           exported=False),
    Figure("drafter_top_1", INTERVAL, "-", "mass of the drafter's likeliest code, where it draws",
           lambda x: x.mass("drafter", 1), "drafter's top 1", 3, AMBIGUITY),
    Figure("drafter_top_10", INTERVAL, "-", "of its 10 likeliest", lambda x: x.mass("drafter", 10)),
    Figure("drafter_top_100", INTERVAL, "-", "of its 100 likeliest",
           lambda x: x.mass("drafter", 100)),
    Figure("drafter_entropy", INTERVAL, "bits", "of the drafter's distribution, mean",
           lambda x: x.entropy("drafter")),
    Figure("drafter_codes", NUMBER, "codes", "2 to the power of the drafter's entropy",
           lambda x: 2 ** x.entropy("drafter").value, "drafter's effective codes", 1, AMBIGUITY,
           exported=False),
    Figure("alpha", INTERVAL, "-", "what the exact rule accepts of the first child, mean",
           lambda x: x.alpha, "exact rule accepts", 3, AMBIGUITY),
    Figure("drafted_depth", NUMBER, "-", "levels of a step's draft, mean",
           lambda x: x.per_forward("drafted_depth"), "levels drafted", 2, AMBIGUITY),
    Figure("tree_depth", NUMBER, "-", "levels that the tree allows",
           lambda x: x.images.tree_depth.max(), exported=False),
    Figure("drafted_nodes", NUMBER, "-", "nodes of a step's draft, mean",
           lambda x: x.per_forward("drafted_nodes"), "nodes drafted", 1, AMBIGUITY),
    # ---- the whole
    Figure("exactness", TEXT, "-", "verdict of the exactness gate",
           lambda x: x.verdict, "verdict", group=MAIN, rank=1),
    Figure("peak_memory_mb", NUMBER, "MB", "most memory of a timed call",
           lambda x: x.peak_memory_mb, "peak MB", 0, PARTS),
    Figure("status", TEXT, "-", "ok, or what failed", lambda x: x.status),
)  # fmt: skip
# Of the tables `roofline` and `batches`, whose functions compute a whole row together.
ROOFLINE = (
    Figure("codes", NUMBER, "codes", "of a forward, root included", None, "codes", 0),
    Figure("step_ms", NUMBER, "ms", "all but the prefill, per forward", None, "step ms", None),
    Figure("step_ar_steps", NUMBER, "AR steps", "the same", None, "step in AR steps"),
    Figure("step_over_floor", NUMBER, "floors", "the same", None, "step over floor", 1),
    Figure("forward_ms", NUMBER, "ms", "a target forward", None, "forward ms", None),
    Figure("forward_ar_steps", NUMBER, "AR steps", "the same", None, "forward in AR steps"),
    Figure("forward_floor_ms", NUMBER, "ms", "its floor", None, "floor ms", None),
    Figure("forward_over_floor", NUMBER, "floors", "a forward", None, "over floor", 1),
    Figure("draft_ms", NUMBER, "ms", "a call of the drafter", None, "draft call ms", None),
)
BATCHES = (
    Figure("batch", NUMBER, "images", "decoded at once", None, "batch", 0),
    Figure("decoder", TEXT, "-", "name of the decoder", None, "decoder"),
    Figure("images_s", INTERVAL, "images/s", "of a call", None, "images/s"),
    Figure("latency_s", INTERVAL, "s", "of a call", None, "latency, s", 3),
    Figure("speedup", INTERVAL, "-", "at the same batch", None, "speed-up at this batch"),
    Figure("mal", INTERVAL, "codes", "per target forward, pooled", None, "codes per forward"),
    Figure("forwards_per_call", NUMBER, "-", "of its slowest image", None, "forwards per call", 1),
    Figure("idle_percent", NUMBER, "%", "row-steps without an image", None, "idle, %", 1),
    Figure("peak_memory_mb", NUMBER, "MB", "most memory of a call", None, "peak MB", 0),
)
BY_NAME = {figure.name: figure for figure in FIGURES}


def figures_with(scores: Iterable[Scores]) -> tuple[Figure, ...]:
    """`FIGURES`, and what a scorer of a user measured besides, by its own names."""
    found = {name: score for one in scores for name, score in one.figures.items()}
    more = []
    for name, score in found.items():
        if name not in BY_NAME:
            unit = f" ({score.unit})" * bool(score.unit)
            better = f", {score.better} is better" * bool(score.better)
            heading = f"{name}{unit}{better}".replace("{", "{{").replace("}", "}}")
            about = (score.unit or "-", f"figure of the study's scorer{better}")
            compute = methodcaller("score", name)
            more.append(Figure(name, INTERVAL, *about, compute, heading, 2, QUALITY))
    return (*FIGURES, *more)
