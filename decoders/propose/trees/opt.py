"""OPT-Tree (2406.17276, decoders.md (h)): the tree of a given size of which the drafter expects
most.

A node's weight w is the drafter's probability of its path, so 1 + sum w is what the drafter expects
per forward. Levels are added while the best `nodes` weights together grow by more than `theta`. The
tree is then the best `nodes` of all. Its children are deterministic, so it is exact (METHODS 3).
Shapes are static, so all `depth` levels are drafted in every step, and those past the stop only
fill places that would stay empty. With nodes <= top_k this is the published tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from decoders.kinds import NotNegative, Within
from decoders.propose.trees.dynamic import Dynamic

PAST_STOP_PENALTY = 1e6  # below every log-probability of a node before the stop


@dataclass(eq=False, repr=False)
class Opt(Dynamic):
    """theta: least growth of the expected codes that another level is worth."""

    depth: Annotated[int, Within(most=256)] = 10
    top_k: Annotated[int, Within(most=256)] = 16
    nodes: Annotated[int, Within(most=4096)] = 60
    theta: NotNegative = 0.5

    def __str__(self) -> str:
        width = f", top_k={self.top_k}" * (self.top_k != Opt.top_k)  # not the default
        return f"opt(theta={self.theta:g}, depth={self.depth}, nodes={self.nodes}{width})"

    def rank(self, scores: Tensor) -> Tensor:
        """Candidates past the stop come last."""
        return scores - torch.where(self.past_stop(scores), PAST_STOP_PENALTY, 0.0)

    def past_stop(self, scores: Tensor) -> Tensor:
        """Which candidates, log-weights [B, C] level by level, lie past the stop."""
        position = torch.arange(scores.shape[1], device=scores.device)
        level = (position - self.top_k) // self.top_k**2 + 1  # [C]; the first has top_k candidates
        depths = torch.arange(self.depth, device=scores.device)
        weights = scores.exp()[:, None] * (level <= depths[:, None])  # [B, D, C]
        expected = weights.topk(min(self.nodes, scores.shape[1]), -1).values.sum(-1)  # [B, D]
        before = torch.nn.functional.pad(expected, (1, -1))
        last = (expected - before <= self.theta).long()  # a level that adds too little is the last
        return (last.cumsum(-1) - last > 0)[:, level]
