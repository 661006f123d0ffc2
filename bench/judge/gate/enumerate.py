"""The exact law of the next committed code at a node (`metrics.node_law`), judged by what the loop
judges with: the rule's tensor code, or the kernel that takes its place."""

from __future__ import annotations

from torch import Tensor

from decoders.api import AcceptRule
from decoders.executed import judge_of
from metrics.node_law import MAX_DRAWS, NodeLaw, Spot, draw_count, ordered_draws
from metrics.node_law import node_law as law_of

__all__ = ["MAX_DRAWS", "NodeLaw", "Spot", "draw_count", "node_law", "ordered_draws"]


def node_law(
    rule: AcceptRule,
    p: Tensor,
    q: Tensor | None,
    children: Tensor | int,
    native: bool = False,
    spot: Spot | None = None,
) -> NodeLaw:
    """p [V], q [V] float32; children: how many are drawn from q, or the deterministic ones [K];
    native: judged by the CPU kernel, where it computes the rule; spot: where the node stands, for a
    rule that depends on it (no kernel computes such a rule)."""
    judge = None
    if not hasattr(rule, "at"):
        judge = judge_of(rule, "cpu" if native else "eager")
    return law_of(rule, p, q, children, judge, spot)
