"""Two decoders of one section of a run, compared in one figure: the effect with its 95 % interval,
image by image, or block by block for seconds. Above 1 (0 for a difference) the first is better.

Of images, sums over both decoders are compared by their `linearised_ratio`: Student's t is taken of
the paired difference of what each image moves it by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.analyse.contrast import Family, contrast, one_number_apart
from bench.analyse.line import Line
from bench.analyse.run import IMAGE_KEY, UNFAIR_BASELINE, Entry, Role, Run
from bench.compare.claims import Spec
from bench.errors import plural
from metrics.speedup import FEWEST_BLOCKS
from metrics.stats import NO_INTERVAL, Interval, linearised_ratio, student_mean
from metrics.traces import TESTED, steps_by_depth


@dataclass(frozen=True)
class Effect:
    """An effect, NaN where it is not known; note: why, or what to know of it."""

    value: Interval = NO_INTERVAL
    note: str = ""


def effects(
    run: Run, figure: str, better: Entry, than: Entry, depths: Sequence[int]
) -> list[Effect]:
    """The effects of a pair of one section: one, or one per depth for acceptance. figure: of
    `claims.FIGURES` but for those of one decoder and `speedup_at_tv`."""
    if figure == "speedup":
        return [speedup(run, better, than)]
    if figure == "clip":
        return [clip(better, than)]
    one, other = paired_images(better, than)
    if len(one) < 2:
        return [Effect(note="fewer than two images of both")]
    forwards, others = (each.nfe.to_numpy(float) for each in (one, other))
    every = np.ones(len(one))
    if figure == "forwards":
        return [Effect(log_ratio(others, every, forwards, every))]
    if figure == "codes_per_forward":
        codes, rest = ((each.mal * each.nfe).to_numpy(float) for each in (one, other))
        return [Effect(log_ratio(codes, forwards, rest, others))]
    if figure == "output_tv":
        return [Effect(difference(*tv_sums(than, other), *tv_sums(better, one)))]
    steps, rest = (steps_by_depth(each.accepted, max(depths)) for each in (one, other))
    return [
        Effect(difference(steps[:, d], steps[:, d - 1], rest[:, d], rest[:, d - 1]), f"depth {d}")
        for d in depths
    ]


def paired_images(one: Entry, other: Entry) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The images that both made in a forward or more, in one order (`images_once` sorts them)."""
    images = [each.line.images for each in (one, other)]
    images = [each[each.nfe > 0] for each in images]
    keys = [pd.MultiIndex.from_frame(each[IMAGE_KEY]) for each in images]
    return images[0][keys[0].isin(keys[1])], images[1][keys[1].isin(keys[0])]


def depths_of(better: Entry, than: Entry, depth: int, deeper: bool) -> list[int]:
    """The draft depths that both have, from one on."""
    most = min(int(each.line.images.tree_depth.max()) for each in (better, than))
    return [*range(depth, most + 1)] if deeper else [depth] * (depth <= most)


def tv_sums(entry: Entry, images: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """[images] each: the output TV summed over recorded nodes, and the committed codes that these
    stand for; 0 per code of an exact decoder, of which none are recorded."""
    line = Line(entry.name, images)
    if entry.exact and not line.pairs.any():
        return np.zeros(len(images)), np.ones(len(images))
    return line.total("tv_output"), line.codes


def below_bound(figure: str, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """[codes] each: how far a tested code's TV is below its bound, and whether that is known.
    bound: TV(p, p_A), as the rule computes it; output_bound: the output's, which is enumerated in
    chains and where no draft is drawn, and estimated for drawn siblings (`metrics.output_law`)."""
    images = entry.line.images
    names = ("bound", "tv_shift") if figure == "bound" else ("tv_declared_bound", "tv_output")
    declared, moved = (np.concatenate([[], *images[name]]) for name in names)
    if figure == "bound":
        tested = np.isin(np.concatenate([[], *images.kind]), TESTED)
        return (declared - moved)[tested], np.ones(tested.sum(), bool)
    drawn = (images.alpha.map(len) == 0) | (images.drafter_mass.map(len) > 0)  # or not recorded
    known = ~drawn | (images.tree_nodes == images.tree_depth)
    return declared - moved, np.repeat(known.to_numpy(bool), images.tv_output.map(len))


def speedup(run: Run, better: Entry, than: Entry) -> Effect:
    """How many times as fast the first is."""
    for entry in (better, than):
        if run.unmeasured(entry):
            return Effect(note=f"times of {entry.name} do not count")
    ratio = contrast("speedup", than, better)
    if ratio is None:
        return Effect(note="not timed in the same blocks")
    few = f"no interval: {plural(ratio.count, 'block')} a minute apart, not {FEWEST_BLOCKS}"
    few *= ratio.count < FEWEST_BLOCKS
    slow = than.role is Role.BASELINE and UNFAIR_BASELINE in run.speed_mark(better)
    return Effect(ratio.interval(), few or UNFAIR_BASELINE * slow)


def clip(better: Entry, than: Entry) -> Effect:
    """How many points of CLIP score the first has more, prompt by prompt."""
    less = contrast("clip", than, better)
    if less is None:
        return Effect(note="fewer than two pictures of both are scored")
    return Effect(less.interval())


# ---- curves -------------------------------------------------------------------------------------


def curves(entries: Sequence[Entry], specs: Mapping[str, Spec]) -> list[Family]:
    """The decoders with a speed-up and an output TV that differ in one number of their rule, as
    curves of two settings or more; a decoder is on one, the longest."""
    known = [e for e in entries if math.isfinite(e.number("speedup") + e.number("tv_output"))]
    return [
        Family("", members[0].name, setting, members)
        for setting, members in one_number_apart(known, specs, 2)
    ]


def speedup_at_tv(better: Family, than: Family) -> Effect:
    """How many times as fast the first is in the middle of the output TV that both curves reach.
    Their intervals are joined as if independent, which is wide: both are over the same AR."""
    ends = [[e.number("tv_output") for e in family.entries] for family in (better, than)]
    least, most = max(map(min, ends)), min(map(max, ends))
    if not least < most:
        return Effect(note="no output TV that both reach")
    level = (least + most) / 2
    one, other = (family.speed_at("tv", level) for family in (better, than))
    half = math.hypot(*(math.log(x.hi / x.lo) / 2 for x in (one, other)))
    value = one.value / other.value
    effect = Interval(value, value * math.exp(-half), value * math.exp(half))
    return Effect(effect, f"at TV {level:.2f}")


# ---- statistics ---------------------------------------------------------------------------------


def log_ratio(
    first: np.ndarray, per_first: np.ndarray, second: np.ndarray, per_second: np.ndarray
) -> Interval:
    """(sum first / sum per_first) / (sum second / sum per_second) of n >= 2 pairs, with an interval
    that is symmetric in the logarithm. All [n], positive."""
    (one, moves), (other, others) = (
        linearised_ratio(*sides) for sides in ((first, per_first), (second, per_second))
    )
    value, half = one / other, student_mean(moves / one - others / other).half_width
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def difference(
    first: np.ndarray, per_first: np.ndarray, second: np.ndarray, per_second: np.ndarray
) -> Interval:
    """sum first / sum per_first - sum second / sum per_second of n >= 2 pairs; NaN where one side
    counted nothing. All [n]."""
    if not (per_first.sum() and per_second.sum()):
        return NO_INTERVAL
    (one, moves), (other, others) = (
        linearised_ratio(*sides) for sides in ((first, per_first), (second, per_second))
    )
    value, half = one - other, student_mean(moves - others).half_width
    return Interval(value, value - half, value + half)
