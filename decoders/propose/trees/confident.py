"""A chain that ends where its drafter gets unsure (DSpark, 2607.05147).

Behind every node the drafter says how sure it is, c, that a draft there is accepted. The walk goes
from the root and stops at the first node at which going on does not pay, seen from there: c is
below `threshold`; or, with the costs of steps of every length given, no longer chain is expected to
commit more codes per cost, if all drafts behind the node are as sure as its own.

Exact, as c never reads the draft that it is about: whether a draft is tested is decided before it
is drawn. The length that is best over the whole block is not allowed: it reads drafts that it
leaves out. Shapes are static, so drafts behind the stop are forwarded all the same and cost what
they cost in a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, DraftSession, Sampling
from decoders.kinds import Positive, Share, Within
from decoders.noise import Noise
from decoders.propose.trees.chain import Chain


class Confident(Chain):
    """threshold: the least confidence at which a draft is tested; 0: any. cost: of steps with 1, 2,
    ... `depth` drafts, over that of a step without (a run's roofline.csv has steps in ms); None:
    not asked for. Raises DecoderError for fewer."""

    def __init__(
        self,
        model: Any = None,
        depth: Annotated[int, Within(1, 4096)] = 4,
        threshold: Share = 0.3,
        cost: Sequence[Positive] | None = None,
    ) -> None:
        super().__init__(model, depth)
        if cost is not None and len(cost) < depth:
            raise DecoderError(
                f"tree.cost: expected the costs of steps with 1 to {depth} drafts over that of a "
                f"step without, found {len(cost)}; lower tree.depth, or give all"
            )
        self.threshold, self.cost = threshold, None if cost is None else [1.0, *cost]

    def __str__(self) -> str:
        cost = "" if self.cost is None else f", cost={self.cost[1 : self.depth + 1]}"
        return f"confident(depth={self.depth}, threshold={self.threshold:g}{cost})"

    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Noise,
        position: Tensor,
    ) -> Draft:
        """See `Static.grow`. Raises DecoderError for a drafter that has no confidence."""
        draft = super().grow(session, root_logits, sampling, noise, position)
        if draft.confidence is None:
            raise DecoderError(
                "tree=confident ends a chain by the drafter's confidence, and this drafter says "
                f"none ({type(session).__name__}); set drafter=dspark, or tree=chain"
            )
        tested = self.tested(draft.confidence[:, : self.depth])  # [B, D]
        children = draft.children.clone()
        children[:, : self.depth, 0] *= tested
        return replace(draft, children=children)

    def tested(self, confidence: Tensor) -> Tensor:
        """Which drafts are tested, [B, D] int64 0 or 1, by how sure the drafter is of each."""
        goes_on = confidence >= self.threshold
        if self.cost is not None:
            goes_on &= self.pays(confidence, self.cost)
        return goes_on.long().cumprod(-1)

    def pays(self, confidence: Tensor, cost: Sequence[float]) -> Tensor:
        """Whether a longer chain is worth its cost, seen from the node before each draft, [B, D]
        bool."""
        reached = torch.ones_like(confidence[:, 0])  # [B], that all drafts so far are accepted
        expected, pays = reached, []  # codes per step
        for k, sure in enumerate(confidence.unbind(1)):
            more, longer, best = expected, reached, torch.zeros_like(reached)
            for price in cost[k + 1 : self.depth + 1]:
                longer = longer * sure
                more = more + longer
                best = torch.maximum(best, more / price)
            pays.append(best >= expected / cost[k])
            reached = reached * sure
            expected = expected + reached
        return torch.stack(pays, 1)
