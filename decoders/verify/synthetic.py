"""Acceptance at stated rates, whatever the drafts are: how fast a decoder would be on this machine
if it accepted as much as a paper reports. For models whose weights are not at hand.

The draft at depth i whose parent was accepted is accepted where u < a_i. On a tree only the first
child of a node is tested. The code after the accepted ones is drawn from the target's p. The
distribution is not AR's, so no figure of quality is made (METHODS 4, 2). For a mean accepted length
m on D levels (bonus included) one rate a has 1 + a + ... + a^D = m.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Proposer, TargetProbs, Verified, Verifier
from decoders.kinds import Share, Within
from decoders.noise import ACCEPT_SLOT, BELOW_ONE, TARGET_SLOT, inverse_cdf
from decoders.verify.token_verifier import at_node, children_of, walk

HALVINGS = 60  # of the interval that holds the rate


def rate_of(mal: float, levels: int) -> float:
    """The rate at which a step on so many levels commits `mal` codes on average. Raises
    DecoderError where no rate is enough."""
    if mal >= levels + 1:
        raise DecoderError(
            f"acceptance.mal={mal:g}: {levels} levels commit at most {levels + 1} codes a step; "
            f"use a tree of {int(mal)} levels or more, or a lower acceptance.mal"
        )
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        below = sum(rate**depth for depth in range(levels + 1)) < mal
        low, high = (rate, high) if below else (low, rate)
    return low


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
        self.by_levels: dict[int, Tensor] = {}

    def __str__(self) -> str:
        given = f"rates={self.rates}" if self.mal is None else f"mal={self.mal:g}"
        return f"synthetic({given})"

    def check(self, proposer: Proposer) -> None:
        """Raises DecoderError where no rate gives `mal`, or the depth of drafts is not known."""
        if self.mal is None:
            return
        tree = proposer.tree
        if proposer.nodes != proposer.depth and (tree is None or tree.paths is None):
            raise DecoderError(
                f"acceptance.mal={self.mal:g} needs drafts of a known depth, a chain or a static "
                "tree, as that of others depends on the drafter; use tree=static, or state "
                "acceptance.rates"
            )
        rate_of(self.mal, proposer.depth)

    def rates_of(self, levels: int) -> Tensor:
        """Returns the rates of the children of a node at each depth, [levels + 1]."""
        if levels not in self.by_levels:
            rates = [*(self.rates or ())]
            if self.mal is not None:
                rates = [rate_of(self.mal, levels)] * levels
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
            u = noise.at((position + path.count)[:, None], TARGET_SLOT)[:, 0]  # [B, 1]
            last = inverse_cdf(at_node(probs.p, path.last), u.clamp_max(BELOW_ONE))[:, 0]
        bonus = ~at_node(valid, path.last).any(-1)
        away = torch.ones_like(path.nodes, dtype=probs.p.dtype)  # nothing bounds the distribution
        relaxed = torch.ones_like(path.order, dtype=torch.bool)
        return Verified(path.nodes, path.count, last, bonus, away, away, relaxed)
