"""What a check of the gate finds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NamedTuple

from metrics.output_law import OutputLaw, Spot


class Node(NamedTuple):
    """A node of a rule: what it is, its children K, where it stands for a rule that asks, and its
    enumerated law."""

    words: str
    siblings: int
    spot: Spot | None
    law: OutputLaw

    @property
    def excess(self) -> float:
        """TV beyond the declared bound; infinite for NaN."""
        return finite_or_inf(self.law.tv - self.law.declared)

    def __str__(self) -> str:
        law, words = self.law, self.words
        if self.spot is not None:
            at = self.spot.position + self.spot.depth
            words += f" at depth {self.spot.depth}, position {at}"
        return f"output TV {law.tv:.4f} where {law.declared:.4f} is declared ({words})"


@dataclass(frozen=True)
class Check:
    """fault: what is wrong, empty if nothing is. tv: the output TV that it measured, 0 if it
    measures none. summary: what was checked, in words; count: how many nodes, roots, codes or
    images. Of an enumeration, unfollowed: the probability of the ways that were not followed, 1
    where none could be, and not_enumerated: why. resolution: the least TV that samples would have
    shown. Of a rule, relaxation: how far its output is away, where it declares a bound; bound: the
    greatest one that it declares; worst: the node that is furthest away; beyond: the one that is
    furthest beyond its own bound; outside: the mass on codes with p(x) = 0. drafts: the share of
    codes that were drafted. gap: between a recorded bound and the rule's. seconds: what it took."""

    name: str
    fault: str = ""
    tv: float = 0.0
    summary: str = ""
    count: int = 0
    unfollowed: float = 0.0
    not_enumerated: str = ""
    resolution: float = 0.0
    relaxation: str = ""
    bound: float | None = None
    worst: Node | None = None
    beyond: Node | None = None
    outside: float = 0.0
    drafts: float = 0.0
    gap: float = 0.0
    seconds: float = field(default=0.0, compare=False)


def timed(check: Callable[..., Check]) -> Callable[..., Check]:
    """The check with the seconds that it took."""

    @wraps(check)
    def measured(*given: Any) -> Check:
        begin = time.perf_counter()
        return replace(check(*given), seconds=time.perf_counter() - begin)

    return measured


def finite_or_inf(figure: float) -> float:
    """The figure, or infinity for NaN, so that no comparison lets NaN pass."""
    return figure if math.isfinite(figure) else math.inf
