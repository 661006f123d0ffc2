"""The gate's report on a decoder, and the result of each check."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Alone = Literal["exact rule", "relaxed rule", "no rule"]  # of a rule without its loop
Verdict = Literal["exact", "relaxed", "broken", "synthetic", "not checked"] | Alone
ACCEPTABLE = "exact", "relaxed", "synthetic", "no"


@dataclass(frozen=True)
class GateReport:
    """verdict, for one setting of sampling: `exact` (the target's law, or its tokens), `relaxed`
    (the output law differs, and the rule declares it), `broken` (a claim is false), `synthetic`
    (drafts are accepted at given rates) or `not checked` (the gate itself failed); `exact rule` and
    `relaxed rule` where nothing else was looked at, `no rule` where there is none. figure: the
    largest output TV measured on small random models, in [0, 1] (greedy: the largest TV shift of an
    accepted draft). evidence: numbers by check. sampled: the least TV that samples would have
    shown, where the law was not enumerated to the end; else 0. changed: the loop is made for other
    targets, and was judged on an ordinary one; the figure is then NaN. decoder: its name; expect:
    the verdict that it should come to, None: exact or relaxed."""

    verdict: Verdict
    figure: float
    detail: str
    evidence: dict[str, Any] = field(default_factory=dict)
    sampled: float = 0.0
    changed: bool = False
    decoder: str = ""
    expect: str | None = None

    @property
    def as_expected(self) -> bool:
        verdict = self.verdict.removesuffix(" rule")
        return verdict in ((self.expect, "no") if self.expect else ACCEPTABLE)

    @property
    def line(self) -> dict[str, str]:
        """Its line in what `check` prints."""
        line = {"decoder": self.decoder, "verdict": self.verdict, "figure": f"{self.figure:.4g}"}
        return line | {"expected": self.expect or "exact or relaxed", "detail": self.detail}

    @property
    def text(self) -> str:
        """A table's cell. A relaxed rule shows no figure: its worst node belongs to a small random
        model."""
        if self.verdict == "broken" and self.figure:
            return f"broken (TV {self.figure:.4f})"
        if self.verdict == "exact" and self.sampled:
            return f"exact as far as sampled (TV < {self.sampled:.2g})"
        return self.verdict + " (target changed)" * self.changed


@dataclass(frozen=True)
class CheckResult:
    """fault: what is wrong, empty if nothing is; evidence: the check's numbers; tv: the output TV
    that it measured, 0 if it measures none; summary: what was checked."""

    name: str
    fault: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    tv: float = 0.0
    summary: str = ""


def finite_or_inf(figure: float) -> float:
    """The figure, or infinity for NaN, so that no comparison lets NaN pass."""
    return figure if math.isfinite(figure) else math.inf
