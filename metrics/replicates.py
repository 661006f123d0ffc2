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
from collections.abc import Mapping

import numpy as np

from metrics.speedup import Speedup, satterthwaite
from metrics.stats import t_quantile


class Replicated(Speedup):
    """A ratio that each of R >= 1 replicates measured, by the number of the replicate: their
    geometric mean, and the blocks of all."""

    each: Mapping[int, Speedup]

    def __init__(self, each: Mapping[int, Speedup]) -> None:
        every = each.values()
        object.__setattr__(self, "each", each)
        super().__init__(
            math.exp(float(self._logs.mean())),
            blocks=sum(one.blocks for one in every),
            least=min(one.least for one in every),
            greatest=max(one.greatest for one in every),
        )

    @property
    def _logs(self) -> np.ndarray:
        return np.log([one.value for one in self.each.values()])

    @property
    def errors(self) -> list[tuple[float, float]]:
        """By the spread of the replicates, and by their own errors, where these are known."""
        own = [one.error for one in self.each.values()]
        if (count := len(own)) == 1:
            return own
        variance, freedom = satterthwaite(*((e**2 / count**2, f) for e, f in own))
        spread = float(self._logs.std(ddof=1)) / math.sqrt(count), count - 1.0
        return [spread, *[(math.sqrt(variance), freedom)] * math.isfinite(variance)]


def over(one: Speedup, other: Speedup) -> Speedup:
    """A ratio over that of other runs, whose moments are others. Replicates that both have are of
    the same prompts, and are compared one by one."""
    if isinstance(one, Replicated) and isinstance(other, Replicated):
        shared = one.each.keys() & other.each.keys()
        if len(shared) > 1:
            return Replicated({k: one.each[k].over(other.each[k]) for k in sorted(shared)})
    elif not isinstance(one, Replicated) and not isinstance(other, Replicated):
        return one.over(other)
    errors = [(error**2, freedom) for error, freedom in (one.error, other.error)]
    blocks = min(one.blocks, other.blocks)
    return Speedup(one.value / other.value, satterthwaite(*errors), {}, blocks)


def narrower(replicates: int, more: int) -> float:
    """By which factor intervals shrink from so many replicates (two or more) to `more`, on
    average: t_{R-1} / sqrt(R)."""
    one, other = (t_quantile(count - 1) / math.sqrt(count) for count in (replicates, more))
    return other / one
