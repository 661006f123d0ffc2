"""A machine's speed-up from replicates: runs of one study on other prompts under other seeds.

Replicate r = 1..R measures y_r, the logarithm of a ratio of seconds, with the error e_r of its own
prompts and moments (`metrics.speedup`). The machine's ratio and its interval are

    exp(mean(y) +- t_{R-1} s / sqrt(R)),        s the standard deviation of y

and never narrower than the replicates' own errors give, sqrt(sum e_r^2) / R. An hour of the machine
moves all decoders of a replicate alike, so two decoders are compared by their ratio in each
replicate. Why not one study run several times: its prompts stay, and their luck with them. An
interval that divides their error by R held the truth in 0.76 of simulated cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from metrics.speedup import Speedup, satterthwaite
from metrics.stats import Interval

LEVEL = 0.05  # share of intervals that miss the truth


def pooled(replicates: Sequence[Speedup], level: float = LEVEL) -> Interval:
    """The ratio over replicates that each measured it, and the interval that misses the machine's
    own in a share `level` of cases. One replicate: its own ratio and interval, which is of that run
    alone."""
    if len(replicates) == 1:
        return replicates[0].interval(level)
    logs = np.log([one.value for one in replicates])
    count, mean = len(logs), float(logs.mean())
    reach = _t(count - 1, level) * float(logs.std(ddof=1)) / math.sqrt(count)
    own = [(error**2 / count**2, freedom) for error, freedom in (r.error for r in replicates)]
    variance, freedom = satterthwaite(*own)
    if math.isfinite(variance):
        reach = max(reach, _t(freedom, level) * math.sqrt(variance))
    return Interval(*(math.exp(mean + x) for x in (0.0, -reach, reach)))


def simultaneous(every: Sequence[Sequence[Speedup]], level: float = LEVEL) -> list[Interval]:
    """The ratios of K decoders over replicates [K][R], with intervals that all hold together but
    for a share `level` of cases (Bonferroni). For whatever is picked out of K, as the fastest."""
    return [pooled(one, level / len(every)) for one in every]


def narrower(replicates: int, more: int) -> float:
    """By which factor intervals shrink from so many replicates (two or more) to `more`, on
    average: t_{R-1} / sqrt(R)."""
    one, other = (_t(count - 1, LEVEL) / math.sqrt(count) for count in (replicates, more))
    return other / one


def _t(freedom: float, level: float) -> float:
    """The two-sided quantile of Student's t."""
    return float(stdtrit(freedom, 1 - level / 2))
