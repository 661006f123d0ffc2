"""Paired contrasts: any two decoders by one figure, on the same images or in the same blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.analyse.paired import paired_speedup
from bench.analyse.run import Entry
from metrics.speedup import Speedup
from metrics.stats import LEVEL, Interval, PairedDifference


def contrast(figure: str, one: Entry, other: Entry) -> Speedup | PairedDifference | None:
    """What `other` has over `one`, with `interval(level)`, `p` and the number of pairs (`count`).
    speedup: the ratio of speeds in one run, or in each of its replicates; else the mean difference,
    image by image, of `mal` or of a score of every picture, in one run or two. None where they
    share no block, or fewer than two images."""
    if figure == "speedup":
        return paired_speedup(one.rows, other.rows)
    both = pd.concat([one.by_image(figure), other.by_image(figure)], axis=1, join="inner").dropna()
    less = (both.iloc[:, 1] - both.iloc[:, 0]).to_numpy(float)
    return PairedDifference(less) if len(less) > 1 else None


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
