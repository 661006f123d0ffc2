"""What the gate says of a decoder, and what its single checks say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["exact", "relaxed", "broken"]

BOTH = "both bounds hold"


@dataclass(frozen=True)
class GateReport:
    """verdict: `exact` (the target's own law, or its tokens), `relaxed` (away from it by no more
    than the rule declares) or `broken` (it claims what is not so). figure: the largest
    output TV measured, in [0, 1] (greedy: the largest mass moved by an accepted draft). evidence:
    the numbers behind it, by check. holds: of a relaxed rule at temperature > 0, which of its two
    bounds is kept at every node, the declared one or the output bound (decoders.md, lemma R)."""

    verdict: Verdict
    figure: float
    detail: str
    evidence: dict[str, Any] = field(default_factory=dict)
    holds: str = ""

    @property
    def text(self) -> str:
        """For a table's cell: `broken (TV 0.4021; output bound holds)`. Where both bounds hold,
        what is violated is none of them."""
        shown = self.holds and not (self.verdict == "broken" and self.holds == BOTH)
        kept = f"; {self.holds}" if shown else ""
        return f"{self.verdict} (TV {self.figure:.4f}{kept})"


@dataclass(frozen=True)
class Finding:
    """One check. fault: what is wrong in words, empty if nothing is; figure: output TV that the
    check measured, 0 where it measures none."""

    name: str
    fault: str
    figure: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


def known(figure: float) -> float:
    """A figure that can be compared: infinity where it is NaN, so that no comparison passes it."""
    return figure if math.isfinite(figure) else math.inf


def holding(declared: bool, output: bool) -> str:
    """Which of a relaxed rule's two bounds hold, in the words of a table's cell."""
    if declared == output:
        return BOTH if declared else "neither bound holds"
    return "declared bound holds" if declared else "output bound holds"
