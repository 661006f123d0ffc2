"""A chain that ends where the drafter is unsure, FREE's rule for a draft's length (2310.05424).

The confidence of a law is its largest probability less its second largest. A node whose law has a
confidence of at most `lam` gets no child, so the chain is cut behind the first unsure node. FREE
asks the target at such a place; so does this, as a node without a child is where the verifier
draws from p. The rule reads drafts and the drafter's laws, nothing of the target, so that the exact
rule stays exact. Shapes are static: all `depth` nodes are drafted and verified in every step, and
those behind the cut fill places that stay empty. What it saves are drafts that a relaxed rule would
have taken; the time of shorter drafts it does not.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.kinds import Share, Within
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.static import Shape


class Confident(Chain):
    """lam: the confidence from which on a node is drafted under."""

    def __init__(
        self,
        model: Any = None,
        depth: Annotated[int, Within(most=4096)] = 4,
        lam: Share = 0.05,
    ) -> None:
        super().__init__(model, depth)
        self.lam = lam

    def __str__(self) -> str:
        return f"confident(lambda={self.lam:g}, depth={self.depth})"

    def kept(self, shape: Shape, laws: list[Tensor]) -> Tensor:
        """See `Static.kept`."""
        best = torch.cat(laws, 1).topk(2, -1).values  # [B, D, 2], of the root and all but the last
        sure = best[..., 0] - best[..., 1] > self.lam
        return shape.children * F.pad(sure, (0, 1))[..., None]  # [B, D + 1, 1]
