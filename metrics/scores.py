"""What a scorer says of a decoder's pictures: figures by name. `score` is all that `metric=` needs:
the built-in scorers are in `metrics.scorers`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from metrics.stats import Interval, share_mean, student_mean

SHARE = "share"  # the unit of figures from 0 to 1


@dataclass(frozen=True)
class Score:
    """A figure of n pictures; NaN where it could not be had. each: that of every picture, in their
    order, where the figure is a mean over pictures; features: the network that made it; unit,
    better: as the heading of its column says, where it is no built-in figure; a figure whose unit
    is `share` has its mean's interval within 0 and 1."""

    value: float = math.nan
    lo: float = math.nan
    hi: float = math.nan
    each: tuple[float, ...] = ()
    features: str = ""
    unit: str = ""
    better: Literal["", "higher", "lower"] = ""

    @classmethod
    def mean(
        cls, each: Sequence[float], unit: str = "", better: Literal["", "higher", "lower"] = ""
    ) -> Score:
        """The mean over pictures, with its interval of 95 %: Student's t, or `share_mean` for the
        unit `share`. each: one or more."""
        value = (share_mean if unit == SHARE else student_mean)(each)
        values = tuple(map(float, each))
        return cls(value.value, value.lo, value.hi, values, unit=unit, better=better)

    def again(self, values: Sequence[float]) -> Score:
        """The same figure as the mean over other values, one or more."""
        return replace(Score.mean(values, self.unit, self.better), features=self.features)

    @property
    def interval(self) -> Interval:
        return Interval(self.value, self.lo, self.hi)


@dataclass(frozen=True)
class Scores:
    """figures: by name, such as fid and clip; protocol: how they were measured. Keys that begin
    with `clip_` or `crop` are about the score of captions."""

    figures: dict[str, Score] = field(default_factory=dict)
    protocol: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Score:
        return self.figures.get(name, Score())


class Scorer(Protocol):
    """Scores n pictures, given as files, with the caption of each."""

    def score(self, images: Sequence[Path], captions: Sequence[str]) -> Scores:
        """Raises MetricError where there are too few images or one is bad."""
        ...
