"""What a stage is, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PASSED, OFF, FAILED, SKIPPED = "passed", "passed, not as expected", "failed", "skipped"


@dataclass(frozen=True)
class Expected:
    """A figure that a stage yields and what an H200 should show; least and most: NaN for no bound.
    `where`: how messages call the place it is read from."""

    name: str
    unit: str
    read: Callable[[Path], float]
    least: float = math.nan
    most: float = math.nan

    def fits(self, value: float) -> bool:
        return not (value < self.least or value > self.most)

    @property
    def bounds(self) -> str:
        """As a reader wants it: `1 to 1.7`, `at least 1.9`."""
        if math.isnan(self.least):
            return "" if math.isnan(self.most) else f"at most {self.most:g}"
        return (
            f"at least {self.least:g}"
            if math.isnan(self.most)
            else f"{self.least:g} to {self.most:g}"
        )


@dataclass(frozen=True)
class Stage:
    """commands: argument lists, run one after another in processes of their own; OUT stands for the
    stage's folder. memory_gb: of the card, where the stage needs more than any card has."""

    name: str
    does: str
    commands: Sequence[Sequence[str]]
    figures: Sequence[Expected] = ()
    seconds: int = 600  # after which a command is stopped
    memory_gb: float = 0.0


@dataclass(frozen=True)
class Figure:
    """A figure that was read. NaN where the stage did not leave it."""

    name: str
    value: float
    unit: str
    expected: str
    fits: bool


@dataclass(frozen=True)
class Verdict:
    stage: str
    verdict: str
    seconds: float = 0.0
    note: str = ""
    log: str = ""
    figures: list[Figure] = field(default_factory=list)

    @property
    def stops(self) -> bool:
        return self.verdict == FAILED
