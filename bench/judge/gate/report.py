"""What the gate says of a decoder, and what its single checks say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["exact", "relaxed", "broken"]


@dataclass(frozen=True)
class GateReport:
    """verdict, of one setting of sampling: `exact` (the target's own law, or its tokens), `relaxed`
    (the output law differs, and the rule says so) or `broken` (it claims what is not so). figure:
    the largest output TV measured on small random models, in [0, 1] (greedy: the largest mass moved
    by an accepted draft). evidence: the numbers behind it, by check. sampled: where the law could
    not be followed to the end, the least TV that the samples would have shown; 0 where it was.
    changed: the loop is for targets of its own, and all of this was found on one like all others;
    the figure is then NaN."""

    verdict: Verdict
    figure: float
    detail: str
    evidence: dict[str, Any] = field(default_factory=dict)
    sampled: float = 0.0
    changed: bool = False

    @property
    def text(self) -> str:
        """For a table's cell. The figure of a relaxed rule is that of the worst node of a small
        random model, so it is evidence and no headline."""
        if self.verdict == "broken":
            return f"broken (TV {self.figure:.4f})"
        if self.verdict == "exact" and self.sampled:
            return f"exact as far as sampled (TV < {self.sampled:.2g})"
        return self.verdict + " (target changed)" * self.changed


@dataclass(frozen=True)
class Finding:
    """One check. fault: what is wrong in words, empty if nothing is; evidence: its numbers; figure:
    output TV that it measured, 0 where it measures none; says: what it looked at."""

    name: str
    fault: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    figure: float = 0.0
    says: str = ""


def known(figure: float) -> float:
    """A figure that can be compared: infinity where it is NaN, so that no comparison passes it."""
    return figure if math.isfinite(figure) else math.inf


def joined(*parts: str) -> str:
    """What is said in parts, of which some may be empty."""
    return "; ".join(filter(None, parts))
