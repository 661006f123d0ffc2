"""The verdict on one published figure beside a measured one.

Reproduced: the published figure lies in our 95 % interval or within the tolerance of ours. Not
reproduced: in neither. Not comparable: a setting that is known differs, or the figure is one that
another GPU, other features or another number of images changes; the reasons are listed, all of
them. What the source leaves unstated is assumed, and the verdict says so.

Ratios (speed-ups) survive another GPU, with a caveat: AR is bound by memory, verification less so.
They do not survive a CPU, where verifying a tree costs several AR steps. Seconds need the same GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.judge.paired import paired_speedup
from bench.published.match import Pair, is_method
from bench.published.measured import COLUMNS, Figure, Measured
from bench.published.names import Names
from bench.published.table import Published

QUALITY = ("fid", "clip", "precision", "recall", "hps")
OVER_A_SET = ("fid", "precision", "recall")  # figures that change with the number of images
LABELS = {
    "speedup": "speed-up", "mal": "MAL", "latency_s": "s/image", "fid": "FID", "clip": "CLIP",
    "precision": "precision", "recall": "recall", "hps": "HPS", "image_reward": "ImageReward",
}  # fmt: skip


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT = "not reproduced"
    APART = "not comparable"


@dataclass(frozen=True)
class Tolerance:
    """How far a figure may lie from ours outside our interval.

    ratio: a fraction of the published figure, for speed-up, MAL and seconds; FID takes half of it.
    clip and hps (100 cos) and precision and recall (shares) are absolute: methods differ by tenths
    of a point there, so a tenth of the figure would call everything reproduced.
    """

    ratio: float = 0.1
    clip: float = 0.5
    hps: float = 0.5
    share: float = 0.02

    def of(self, metric: str, published: float) -> float:
        """In the unit of the figure."""
        if metric in ("clip", "hps"):
            return getattr(self, metric)
        if metric in ("precision", "recall"):
            return self.share
        return abs(published) * (self.ratio / 2 if metric == "fid" else self.ratio)


@dataclass(frozen=True)
class Comparison:
    """published is in our unit (CLIP times 100). why: the grounds; assumed: what the source does
    not state; caveats: what else to know; direction: of a speed-up that is not comparable.
    same_model: False also where nothing was measured; unstated: see `match.Pair`."""

    row: Published
    measured: Measured | None
    metric: str
    published: float
    figure: Figure
    verdict: Verdict
    why: str
    obstacles: tuple[str, ...]
    assumed: tuple[str, ...]
    caveats: tuple[str, ...]
    same_model: bool
    unstated: str = ""
    direction: str = ""

    @property
    def difference(self) -> float:
        """Measured minus published."""
        return self.figure.value - self.published

    @property
    def label(self) -> str:
        """`speed-up over EAGLE-2`."""
        name = LABELS[self.metric]
        return f"{name} over {self.row.baseline}" if self.metric == "speedup" else name


def compare(
    pair: Pair, rows: Sequence[Measured], names: Names, tolerance: Tolerance
) -> list[Comparison]:
    """Every figure of the published row beside the measured one. rows: the whole run, for the
    baseline of a speed-up."""
    found = []
    for metric, value in pair.published.figures.items():
        trivial = pair.published.method == pair.published.baseline
        if trivial and metric in ("speedup", "mal"):
            continue  # 1 by definition
        found.append(_one(pair, metric, value, rows, names, tolerance))
    return found


def _one(
    pair: Pair,
    metric: str,
    printed: float,
    rows: Sequence[Measured],
    names: Names,
    tolerance: Tolerance,
) -> Comparison:
    published = printed * COLUMNS[metric][1] if metric in COLUMNS else printed
    ours, row = pair.measured, pair.published
    obstacles, figure = list(pair.obstacles), Figure()
    caveats: list[str] = []
    if ours is not None:
        figure, missing = _figure(row, ours, metric, rows, names)
        obstacles += [missing] if missing else []
        obstacles += _obstacles(row, ours, metric, names)
        caveats = _caveats(row, ours, metric)
    assumed = () if obstacles else pair.assumed
    if obstacles:
        verdict, why = Verdict.APART, "; ".join(obstacles)
    else:
        verdict, why = judge(published, figure, tolerance.of(metric, published))
    side = direction(published, figure) if metric == "speedup" and obstacles else ""
    return Comparison(
        row=row,
        measured=ours,
        metric=metric,
        published=published,
        figure=figure,
        verdict=verdict,
        why=why,
        obstacles=tuple(obstacles),
        assumed=assumed,
        caveats=tuple(caveats),
        same_model=pair.same_model,
        unstated=pair.unstated,
        direction=side,
    )


def judge(published: float, figure: Figure, tolerance: float) -> tuple[Verdict, str]:
    """The verdict on two comparable figures, and its grounds."""
    off = figure.value - published
    relative = f"{100 * off / published:+.1f} %" if published else f"{off:+.3g}"
    near = abs(off) <= tolerance
    inside = figure.has_interval and figure.lo <= published <= figure.hi
    grounds = f"{relative}, {'within' if near else 'beyond'} the tolerance of {tolerance:.3g}"
    if figure.has_interval:
        place = "inside" if inside else "outside"
        grounds += f"; published is {place} our 95 % interval [{figure.lo:.4g}, {figure.hi:.4g}]"
        if inside and not near:
            grounds += ", which is wide: more prompts or blocks would tell"
    else:
        grounds += "; no interval of ours"
    return (Verdict.REPRODUCED if near or inside else Verdict.NOT), grounds


def direction(published: float, figure: Figure) -> str:
    """Whether both are faster (or slower) than the baseline, where our interval says either."""
    if not figure.has_interval or figure.lo <= 1 <= figure.hi or published == 1:
        return ""
    words = {True: "faster", False: "slower"}
    ours, theirs = figure.lo > 1, published > 1
    if ours == theirs:
        return f"same direction: {words[ours]} in both"
    return f"opposite direction: {words[ours]} here, {words[theirs]} there"


def _figure(
    row: Published, ours: Measured, metric: str, rows: Sequence[Measured], names: Names
) -> tuple[Figure, str]:
    """Our figure, and why there is none. A speed-up over another method than AR is the paired ratio
    of the seconds on the same prompts, or that of the mean seconds where no records are at hand."""
    if metric not in COLUMNS:
        return Figure(), f"{LABELS[metric]} is not measured here"
    if metric != "speedup":
        figure = ours.figures[metric]
        return figure, "" if figure.known else f"{LABELS[metric]} was not measured in this run"
    same = [
        other
        for other in rows
        if is_method(other, row.baseline, names)
        and (other.model, other.temperature, other.cfg) == (ours.model, ours.temperature, ours.cfg)
    ]
    if not same:
        where = f"temperature {ours.temperature:g} and cfg {ours.cfg:g}"
        return Figure(), f"other baseline: no {row.baseline} at {where} in this run"
    base = next((other for other in same if other.tree == ours.tree), same[0])
    figure = ours.figures["speedup"] if base.rule.name == "none" else ratio(base, ours)
    return figure, "" if figure.known else "speed-up was not measured in this run"


def ratio(base: Measured, ours: Measured) -> Figure:
    """Seconds of `base` over ours: paired bootstrap over shared prompts or blocks, or of means."""
    if base.records is not None and ours.records is not None:
        found = paired_speedup(base.records, ours.records)
        if found is not None:
            return Figure(found.value, found.lo, found.hi)
    return Figure(base.figures["latency_s"].value / ours.figures["latency_s"].value)


def _obstacles(row: Published, ours: Measured, metric: str, names: Names) -> list[str]:
    """What keeps this figure apart, beyond the settings of the pair."""
    found = ["acceptance was replayed, not decided by the rule"] if ours.replayed else []
    if metric == "speedup" and ours.device == "cpu":
        found.append("measured on a CPU, where verifying a tree costs several AR steps")
    if metric == "latency_s":
        found += _seconds(row, ours)
    if metric in QUALITY and ours.figures[metric].known:
        features = ours.features.get(metric, "")
        if not features:
            found.append(f"the summary does not name the weights of {LABELS[metric]}")
        elif not names.same_features(metric, features):
            wanted = " ".join(names.features[metric])
            found.append(f"other metric weights ({features}; the protocol's are {wanted})")
    if metric in OVER_A_SET and ours.images != names.images:
        found.append(f"over {ours.images} images (the protocol's are {names.images})")
    return found


def _seconds(row: Published, ours: Measured) -> list[str]:
    if not row.gpu:
        return ["the source names no GPU; seconds of two machines do not compare"]
    if not ours.gpu:
        return [f"other GPU (published {row.gpu}, here {ours.device}); seconds do not compare"]
    if not same_gpu(row.gpu, ours.gpu):
        return [f"other GPU (published {row.gpu}, here {ours.gpu}); seconds do not compare"]
    return []


def same_gpu(published: str, ours: str) -> bool:
    """`RTX 3090` is `NVIDIA GeForce RTX 3090`, but not an RTX 3090 Ti."""

    def words(text: str) -> set[str]:
        return set(re.split(r"[^a-z0-9]+", text.lower())) - {"", "nvidia", "geforce"}

    wanted, found = words(published), words(ours)
    variant = {"ti", "super"}
    return wanted <= found and wanted & variant == found & variant


def _caveats(row: Published, ours: Measured, metric: str) -> list[str]:
    found = []
    if metric == "speedup":
        found += _gpu_caveat(row, ours)
    if ours.rule.settings.get("residual") == "paper" and ours.temperature > 0:
        found.append("our rule is the one on paper, published numbers come from the released code")
    return found


def _gpu_caveat(row: Published, ours: Measured) -> list[str]:
    if ours.device == "cpu":
        return []
    if not row.gpu:
        return ["GPU not stated: a ratio is compared across GPUs"]
    if ours.gpu and same_gpu(row.gpu, ours.gpu):
        return []
    return [f"other GPU (published {row.gpu}, here {ours.gpu or ours.device}): only ratios compare"]
