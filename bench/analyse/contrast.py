"""Decoders against each other. Paired contrasts: any two by one figure, on the same images or in
the same blocks. Families: those that differ in one number of their acceptance rule, as a curve:
speed at equal output TV or equal loss of CLIP score. And the fastest decoder within an output TV.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.figures import cells
from bench.analyse.paired import CLIP_LESS, paired_speedup
from bench.analyse.run import Entry, Role, Run, Section
from metrics.speedup import Speedup
from metrics.stats import LEVEL, NO_INTERVAL, Interval, PairedDifference, linearised_ratio

WITHIN = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)  # output TV
FEWEST_SETTINGS = 3  # of a family
LEVELS = {  # of output TV, and of the loss of CLIP score
    "tv": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4),
    "clip": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
}


def contrast(figure: str, one: Entry, other: Entry) -> Speedup | PairedDifference | None:
    """What `other` has over `one`, with `interval(level)`, `p` and the number of pairs (`count`).
    speedup: the ratio of speeds in one run, or in each of its replicates; else the difference of
    `mal`, or of a score of every picture, over the images that both made, in one run or two. None
    where they share no block, or fewer than two images."""
    if figure == "speedup":
        return paired_speedup(one.rows, other.rows)
    each = {0: one.by_image(figure), 1: other.by_image(figure)}
    both: Any = pd.concat(each, axis=1, join="inner").dropna()
    return PairedDifference(_parts(both[1]) - _parts(both[0])) if len(both) > 1 else None


def _parts(images: pd.DataFrame) -> np.ndarray:
    """[images]: what each gives to their weighted mean, which is the mean of these."""
    mean, off = linearised_ratio(images.value * images.weight, images.weight)
    return mean + off


def ranked(run: Run, section: Section) -> list[Entry]:
    """The decoders whose speed-up counts, the fastest first."""
    timed = [e for e in section.decoders if e.role is Role.DECODER and not e.failed]
    counted = [e for e in timed if not (run.unmeasured(e) or run.eager(e))]
    counted = [e for e in counted if math.isfinite(e.number("speedup"))]
    return sorted(counted, key=lambda e: -e.number("speedup"))


def fastest(entry: Entry, count: int) -> Interval:
    """The speed-up of the fastest of so many decoders, with an interval that holds for all of them
    together (Bonferroni): who is picked out of many has had luck."""
    ratio = entry.line.speedup
    return entry.interval("speedup") if ratio is None else ratio.interval(LEVEL / count)


def beats_baseline(entry: Entry, count: int) -> bool:
    """Whether the fastest of so many decoders is faster than the baseline beyond chance, or just
    faster where it has no interval."""
    speedup = fastest(entry, count)
    return speedup.value > 1 and not speedup.contains(1)


def may_be_as_fast(entries: Sequence[Entry]) -> list[Entry]:
    """Those that are not told apart from the first, the fastest, by their times in the same blocks.
    The error is divided by their number, so that it holds for all of them together (Bonferroni)."""
    first, rivals = entries[0], entries[1:]
    level = LEVEL / max(len(rivals), 1)

    def slower(rival: Entry) -> bool:
        ratio = contrast("speedup", first, rival)
        return ratio is not None and ratio.interval(level).hi < 1

    return [rival for rival in rivals if not slower(rival)]


@dataclass(frozen=True)
class Family:
    """Decoders of a section that differ in `setting` alone, such as acceptance.delta, in its
    order."""

    section: str
    name: str
    setting: str
    entries: list[Entry]

    def around(self, figure: str, level: float) -> list[tuple[Entry, Entry]]:
        """The neighbouring settings between which a figure has this level."""
        known = [e for e in self.entries if math.isfinite(loss(e, figure).value)]
        return [
            pair
            for pair in pairwise(known)
            if len({loss(entry, figure).value < level for entry in pair}) == 2
        ]

    def speed_at(self, figure: str, level: float) -> Interval:
        """Returns the speed-up where a figure (`loss`) has this level, on a straight line between
        neighbouring settings, in the logarithm of the speed-up. The interval joins that of the
        speed-up with what the figure's own interval leaves open along the line, and ends with the
        family's. NaN where the level is outside of the settings, or is crossed more than once, or
        between settings that are not told apart (`told`)."""
        met = self.around(figure, level)
        if len(met) != 1 or not told(*met[0], figure):
            return NO_INTERVAL
        losses, speeds = [loss(e, figure) for e in met[0]], [_log_speed(e) for e in met[0]]
        step = losses[1].value - losses[0].value
        share = (level - losses[0].value) / step

        def between(first: float, second: float) -> float:
            return (1 - share) * first + share * second

        slope = abs((speeds[1].value - speeds[0].value) / step)
        along = slope * between(*(one.half_width for one in losses))
        middle = between(*(speed.value for speed in speeds))
        half = math.hypot(between(*(speed.half_width for speed in speeds)), along)
        every = [_log_speed(entry) for entry in self.entries]
        lo, hi = min(speed.lo for speed in every), max(speed.hi for speed in every)
        return Interval(*map(math.exp, (middle, max(middle - half, lo), min(middle + half, hi))))


def told(one: Entry, other: Entry, figure: str) -> bool:
    """Whether two settings differ in a figure beyond chance: in the CLIP score prompt by prompt. A
    line between settings that do not is one through noise."""
    losses = [loss(entry, figure) for entry in (one, other)]
    if figure == "clip" and all(entry.line.scores["clip"].each for entry in (one, other)):
        less = contrast("clip", one, other)
        return less is not None and not less.interval().contains(0)
    apart = abs(losses[0].value - losses[1].value)
    return apart > math.hypot(*(each.half_width for each in losses))


def _log_speed(entry: Entry) -> Interval:
    return Interval(*map(math.log, vars(entry.interval("speedup")).values()))


def loss(entry: Entry, figure: str) -> Interval:
    """Returns the output TV, or how much CLIP score is lost on AR (figure "clip")."""
    found = entry.interval(CLIP_LESS if figure == "clip" else "tv_output")
    return Interval(-found.value, -found.hi, -found.lo) if figure == "clip" else found


def families(run: Run) -> list[Family]:
    return [family for section in run.sections for family in families_of(run, section)]


def families_of(run: Run, section: Section) -> list[Family]:
    """Finds the families of a section: at least `FEWEST_SETTINGS` decoders with a speed-up that
    differ in one number of their acceptance rule. A decoder is in one family, the largest."""
    entries = [e for e in section.decoders if math.isfinite(e.number("speedup"))]
    found = list[Family]()
    for setting, members in one_number_apart(entries, run.specs, FEWEST_SETTINGS):
        found.append(Family(section.title, _name_of(members, found), setting, members))
    return found


def one_number_apart(
    entries: Sequence[Entry], specs: Mapping[str, Mapping[str, Any]], fewest: int
) -> Iterator[tuple[str, list[Entry]]]:
    """Yields decoders that differ in one number of their acceptance rule alone, at least `fewest`,
    with its name and in its order; the largest group first, and a decoder in one group. specs: see
    `Run.specs`."""
    groups = dict[Any, list[Entry]]()
    for entry in entries:
        spec = {key: value for key, value in specs.get(entry.name, {}).items() if key != "name"}
        for key, value in spec.items():
            if key.startswith("acceptance.") and type(value) in (int, float):
                rest = tuple(sorted((k, repr(v)) for k, v in spec.items() if k != key))
                groups.setdefault((key, rest), []).append(entry)
    taken = set[str]()
    for (setting, _), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        members = [entry for entry in members if entry.name not in taken]
        if len(members) >= fewest:
            members.sort(key=lambda entry: specs[entry.name][setting])
            taken |= {entry.name for entry in members}
            yield setting, members


def _name_of(members: Sequence[Entry], others: Sequence[Family]) -> str:
    """Returns what the names of the members begin with alike: `lantern` of lantern_d0.1 and
    lantern_d0.2; the first one's name where another family is called so."""
    words = zip(*(entry.name.split("_") for entry in members), strict=False)
    name = "_".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, words))
    return members[0].name if not name or name in {one.name for one in others} else name


def equal_loss(found: Sequence[Family]) -> Iterator[dict[str, Any]]:
    """The speed-up of every family at each of the levels of `LEVELS`. met: whether two settings are
    around it."""
    for family in found:
        for figure, levels in LEVELS.items():
            for level in levels:
                yield {
                    "section": family.section,
                    "family": family.name,
                    "setting": family.setting,
                    "figure": figure,
                    "level": level,
                    "met": bool(family.around(figure, level)),
                    **cells({"speedup": family.speed_at(figure, level)}),
                }


def fastest_within(run: Run) -> Iterator[dict[str, Any]]:
    """The fastest decoder whose output TV is at most each of `WITHIN`, 0 of exact ones; the
    baseline, where none of them, nor of those within less, is faster than it beyond chance. A level
    at which the answer stays the same is left out. or_: those that are not told apart from it, all
    in the answer where it is the baseline."""
    for section in run.sections:
        counted = [e for e in ranked(run, section) if e.word != "broken"]
        before, gains, baseline = "", False, section.baseline
        for level in WITHIN if counted else ():
            inside = [e for e in counted if e.exact or e.number("tv_output") <= level]
            gains = gains or any(beats_baseline(entry, len(inside)) for entry in inside)
            if gains or (inside and baseline is None):
                first, close = inside[0], may_be_as_fast(inside)
            elif baseline is not None:
                first = baseline
                close = [e for e in inside if not fastest(e, len(inside)).hi < 1]
            else:
                continue
            names = ", ".join(one.name for one in close)
            answer = first.name + names * (first is baseline)
            if answer != before:
                before, line = answer, {"section": section.title, "at_most": level}
                yield line | {"fastest": first.name, "or_": names}
