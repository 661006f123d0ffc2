"""Judges whether published figures are reproduced by measured ones.

Reproduced: the published figure lies in our 95 % interval or within the tolerance of ours. Not
reproduced: in neither. Not comparable: a setting that is known differs, or the figure is one that
another GPU, other features or another number of images changes; the reasons are listed, all of
them. What the source leaves unstated is assumed, and the verdict says so.

Ratios (speed-ups) are compared across GPUs, which compare.csv names. They do not survive a CPU,
where verifying a tree costs several AR steps. Seconds need the same GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.analyse.paired import paired_speedup
from bench.analyse.run import Run
from bench.compare.pairs import FIGURES, Candidate, is_method, measured_decoders, nearest
from bench.compare.published import LABELS, Names, Published, contradictions
from metrics.stats import UNKNOWN, Interval

QUALITY = ("fid", "clip", "precision", "recall", "hps")
ABSOLUTE = {"clip": 0.5, "hps": 0.5, "precision": 0.02, "recall": 0.02}  # tolerances
OVER_A_SET = ("fid", "precision", "recall")  # figures that change with the number of images


class Reproduction(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Comparison:
    """One figure of a published row, and a decoder's (None: the run has no such method). published
    is in our unit (CLIP times 100). why: the grounds of the verdict; obstacles: why there is none;
    assumed: what the source does not state; contradictions: what other sources give."""

    row: Published
    measured: Candidate | None
    metric: str
    published: float
    figure: Interval
    verdict: Reproduction
    why: str
    obstacles: Sequence[str] = ()
    assumed: Sequence[str] = ()
    contradictions: Sequence[str] = ()

    @property
    def decoder(self) -> str:
        """The measured decoder's name; "" where nothing was measured."""
        return "" if self.measured is None else self.measured.entry.name

    @property
    def difference(self) -> float:
        """Measured minus published."""
        return self.figure.value - self.published

    @property
    def label(self) -> str:
        """`speed-up over EAGLE-2`."""
        name = LABELS[self.metric]
        return f"{name} over {self.row.baseline}" if self.metric == "speedup" else name


def compare_rows(
    rows: Sequence[Published], run: Run, names: Names, tolerance: float
) -> list[Comparison]:
    """Compares every published figure, in order, with the decoders nearest to its row; tolerance:
    a ratio, see `tolerance_of`."""
    decoders, every = measured_decoders(run), list[Comparison]()
    for row in rows:
        pairs = nearest(row, decoders, names)
        for metric, stated in row.figures.items():
            if row.method == row.baseline and metric in ("speedup", "mal"):
                continue  # of AR both are 1 by definition
            published = stated * (100 if metric == "clip" else 1)
            if not pairs:
                why = f"{row.method} was not measured in this run"
                if row.method not in names.methods:
                    why = f"{row.method} has no rows that conf/decoder can recognise"
                apart = Reproduction.NOT_COMPARABLE
                every.append(Comparison(row, None, metric, published, UNKNOWN, apart, why, [why]))
            for ours, agreed in pairs:
                figure, missing = _figure(row, ours, metric, decoders, names)
                obstacles = [text for agrees, text in agreed.values() if agrees is False]
                obstacles += missing + obstacles_of(row, ours, metric, names)
                verdict, grounds = Reproduction.NOT_COMPARABLE, "; ".join(obstacles)
                assumed = list[str]()
                if not obstacles:
                    allowed = tolerance_of(metric, published, tolerance)
                    verdict, grounds = judge(published, figure, allowed)
                    assumed = [text for agrees, text in agreed.values() if agrees is None]
                every.append(Comparison(row, ours, metric, published, figure, verdict, grounds,
                                        obstacles, assumed,
                                        contradictions(row, metric, rows)))  # fmt: skip
    return every


def tolerance_of(metric: str, published: float, ratio: float) -> float:
    """Returns how far a figure may lie from ours outside our interval, in its unit. ratio: a
    fraction of the published figure, for speed-up, MAL and seconds; FID takes half of it. The
    others (100 cos, shares) are absolute: methods differ by tenths of a point there, so a tenth of
    the figure would call everything reproduced."""
    relative = abs(published) * (ratio / 2 if metric == "fid" else ratio)
    return ABSOLUTE.get(metric, relative)


def judge(published: float, figure: Interval, tolerance: float) -> tuple[Reproduction, str]:
    """Returns the verdict on two comparable figures, and its grounds."""
    error = figure.value - published
    relative = f"{100 * error / published:+.1f} %" if published else f"{error:+.3g}"
    near, inside = abs(error) <= tolerance, figure.contains(published)
    grounds = f"{relative}, {'within' if near else 'beyond'} the tolerance of {tolerance:.3g}"
    if not math.isnan(figure.lo + figure.hi):
        place = "inside" if inside else "outside"
        grounds += f"; published is {place} our 95 % interval [{figure.lo:.4g}, {figure.hi:.4g}]"
        if inside and not near:
            grounds += ", which is wide: more prompts or blocks would tell"
    else:
        grounds += "; no interval of ours"
    return (Reproduction.REPRODUCED if near or inside else Reproduction.NOT_REPRODUCED), grounds


def _figure(
    row: Published, ours: Candidate, metric: str, rows: Sequence[Candidate], names: Names
) -> tuple[Interval, list[str]]:
    """Returns our figure, or why there is none. A speed-up over another method than AR is the
    paired ratio of the seconds on the same prompts."""
    if metric not in FIGURES:
        return UNKNOWN, [f"{LABELS[metric]} is not measured here"]
    figure = ours.figure(metric)
    if metric == "speedup":
        same = [o for o in rows if is_method(o, row.baseline, names) and o.setting == ours.setting]
        if not same:
            _, temperature, cfg = ours.setting
            where = f"temperature {temperature:g} and cfg {cfg:g}"
            return UNKNOWN, [f"other baseline: no {row.baseline} at {where} in this run"]
        base = next((o for o in same if o.parts["tree"] == ours.parts["tree"]), same[0])
        if base.parts["acceptance"].name != "none":
            ratio = paired_speedup(base.entry.ok, ours.entry.ok)
            figure = UNKNOWN if ratio is None else ratio.interval()
    unknown = [f"{LABELS[metric]} was not measured in this run"]
    return figure, unknown if math.isnan(figure.value) else []


def obstacles_of(row: Published, ours: Candidate, metric: str, names: Names) -> list[str]:
    """Lists what keeps this figure apart, beyond the settings of the pair."""
    obstacles = list[str]()
    if metric == "speedup" and ours.device == "cpu":
        obstacles.append("measured on a CPU, where verifying a tree costs several AR steps")
    if metric == "latency_s" and not row.gpu:
        obstacles.append("the source names no GPU; seconds of two machines do not compare")
    elif metric == "latency_s" and not same_gpu(row.gpu, ours.device):
        obstacles.append(
            f"other GPU (published {row.gpu}, here {ours.device}); seconds do not compare"
        )
    if metric in QUALITY and not math.isnan(ours.figure(metric).value):
        features = ours.features(metric)
        if not features:
            obstacles.append(f"the summary does not name the weights of {LABELS[metric]}")
        elif not names.same_features(metric, features):
            wanted = " ".join(names.features[metric])
            obstacles.append(f"other metric weights ({features}; the protocol's are {wanted})")
    images = int(n) if (n := ours.entry.number("n_quality")) > 0 else 0
    if metric in OVER_A_SET and images != names.images:
        obstacles.append(f"over {images} images (the protocol's are {names.images})")
    return obstacles


def same_gpu(published: str, ours: str) -> bool:
    """Whether two names mean one GPU: `RTX 3090` is `GeForce RTX 3090`, but not an RTX 3090 Ti."""

    def words(text: str) -> set[str]:
        return set(re.split(r"[^a-z0-9]+", text.lower())) - {"", "nvidia", "geforce"}

    wanted, here = words(published), words(ours)
    variant = {"ti", "super"}
    return wanted <= here and wanted & variant == here & variant
