"""Acceptance at stated rates, whatever the drafts are: how fast a decoder would be on this machine
if it accepted as much as a paper reports. For models whose weights are not at hand.

The draft at depth i whose parent was accepted is accepted where u < a_i. On a tree the first child
of a node is tested. What follows comes from the target's p. No distribution is kept, so there is no
figure of quality (METHODS 4, 2). For a mean accepted length m (bonus included) one rate a has
1 + a + ... + a^D = m, where D is the depth of the path of first children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Proposer, TargetProbs, Verified, Verifier
from decoders.kinds import Share, Within
from decoders.noise import ACCEPT_SLOT
from decoders.verify.token_verifier import at_node, children_of, code_behind, walk

HALVINGS = 60  # of the interval that holds the rate


def rate_of(mal: float, levels: int) -> float:
    """The rate at which a step on so many levels commits `mal` codes on average. Raises
    DecoderError where no rate is enough."""
    if mal >= levels + 1:
        raise DecoderError(
            f"acceptance.mal={mal:g}: {levels} levels of first children commit at most "
            f"{levels + 1} codes a step; use a tree whose first children go {int(mal)} levels or "
            f"more down, as tree=chain tree.depth={int(mal)}, or a lower acceptance.mal"
        )
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        below = sum(rate**depth for depth in range(levels + 1)) < mal
        low, high = (rate, high) if below else (low, rate)
    return low


def first_children(proposer: Proposer) -> int | None:
    """How deep the path of first children is, the same in every draft: of a static tree, and of a
    chain. None where nobody knows before a draft is there."""
    tree = proposer.tree
    if tree is not None and tree.paths is not None:
        return max(len(path) for path in tree.paths if not any(path))
    chain = proposer.branching == 1 and proposer.nodes == proposer.depth
    return proposer.depth if chain else None


class Synthetic(Verifier):
    """mal: mean accepted length, 1 or more; or rates: a_1, a_2, ... by level, 0 for levels past the
    list."""

    synthetic = True

    def __init__(
        self,
        model: Any,
        mal: Annotated[float, Within(1)] | None = None,
        rates: Sequence[Share] | None = None,
    ) -> None:
        if (mal is None) == (not rates):
            raise DecoderError(
                "acceptance=synthetic needs acceptance.mal, a mean accepted length, or "
                f"acceptance.rates, one for each level; found mal={mal}, rates={rates}"
            )
        self.mal, self.rates, self.device = mal, rates, model.device
        self.depth: int | None = None  # of the path of first children
        self.by_levels: dict[int, Tensor] = {}

    def __str__(self) -> str:
        given = f"rates={self.rates}" if self.mal is None else f"mal={self.mal:g}"
        return f"synthetic({given})"

    def check(self, proposer: Proposer) -> None:
        """Raises DecoderError where no rate gives `mal`, or the depth of drafts is not known."""
        if self.mal is None:
            return
        self.depth = first_children(proposer)
        if self.depth is None:
            raise DecoderError(
                f"acceptance.mal={self.mal:g} needs drafts of a known depth, a chain or a static "
                "tree, as that of others depends on the drafter; use tree=static, or state "
                "acceptance.rates"
            )
        rate_of(self.mal, self.depth)

    def rates_of(self, levels: int) -> Tensor:
        """Returns the rates of the children of a node at each depth, [levels + 1]."""
        if levels not in self.by_levels:
            rates = [*(self.rates or ())]
            if self.mal is not None:
                depth = levels if self.depth is None else self.depth
                rates = [rate_of(self.mal, depth)] * depth
            padded = [*rates[:levels], *[0.0] * (levels + 1)][: levels + 1]
            self.by_levels[levels] = torch.tensor(padded, device=self.device)
        return self.by_levels[levels]

    def verify(
        self, probs: TargetProbs, draft: Draft, noise: Any, position: Tensor, state: Any
    ) -> Verified:
        """Raises DecoderError where no rate gives `mal`."""
        _, valid = children_of(draft)  # [B, N + 1, K]
        first = valid & (valid.int().cumsum(-1) == 1)
        u = noise.at(position[:, None] + draft.depth, ACCEPT_SLOT, 1)  # [B, N + 1, 1]
        rate = self.rates_of(draft.levels)[draft.depth]  # [B, N + 1]
        path = walk(draft, first & (u < rate[..., None]), draft.levels)
        if probs.greedy:
            last = at_node(probs.logits, path.last).argmax(-1)
        else:
            last = code_behind(probs.p, path.last, noise, position + path.count)
        bonus = ~at_node(valid, path.last).any(-1)
        away = torch.ones_like(path.nodes, dtype=probs.p.dtype)  # nothing bounds the distribution
        relaxed = torch.ones_like(path.order, dtype=torch.bool)
        return Verified(path.nodes, path.count, last, bonus, away, away, relaxed)
