"""What the gate says of a decoder, and what its single checks say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["exact", "bounded", "violates"]


@dataclass(frozen=True)
class GateReport:
    """verdict: `exact` (the target's own law, or its tokens), `bounded` (away from it by no more
    than the rule declares) or `violates`. figure: the largest output TV measured, in [0, 1]
    (greedy: the largest mass moved by an accepted draft). evidence: the numbers behind it, by
    check."""

    verdict: Verdict
    figure: float
    detail: str
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """For a table's cell: `violates (TV 0.4021)`."""
        return f"{self.verdict} (TV {self.figure:.4f})"


@dataclass(frozen=True)
class Finding:
    """One check. fault: what is wrong in words, empty if nothing is; figure: output TV that the
    check measured, 0 where it measures none."""

    name: str
    fault: str
    figure: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)
