"""What the drafter expects of its drafts (METHODS2 (h)): codes per forward, 1 + the sum over nodes
of its probability of the path to the node.

It is what a test by equality would commit, were the target's law the drafter's. A tree that knows
it says so (`Draft.expected`). Of drawn children it follows from q. A step only keeps the q of the
drafted codes; all else is done once, behind the last step, so it costs a step two small copies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import Draft


class Expected:
    """Of one run: `note` every draft, then `mean`."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None  # [B, 1], 0, 1, ...
        self.known: list[Tensor] = []  # [B] of a step, where drafts say it themselves
        self.shares: list[Tensor] = []  # [B, N + 1] of a step: q of each node's code at its parent
        self.children: list[Tensor] = []  # [B, N + 1, K] of a step, where nodes have siblings
        self.parents: list[Tensor] = []  # [B, N + 1] of a step; one where all have the same shape
        self.levels = 0

    def note(self, draft: Draft) -> None:
        """Keeps of a draft what its expectation needs; a draft lasts until the next one."""
        if draft.expected is not None:
            self.known.append(draft.expected.clone())
        elif draft.q is not None:
            if self.rows is None:
                self.rows = torch.arange(len(draft.codes), device=draft.codes.device)[:, None]
            self.shares.append(draft.q[self.rows, draft.parents, draft.codes])
            if draft.ancestry is None or not self.parents:
                self.parents.append(draft.parents.clone())
            if draft.children.shape[-1] > 1:
                self.children.append(draft.children.clone())
            self.levels = draft.levels

    def mean(self, accepted: Tensor) -> Tensor | None:
        """Mean over an image's steps, [B] float32; None where not every draft said something.
        accepted [B, S]: -1 where an image had no such step (`decoders.api.Trace`)."""
        active = accepted.T >= 0  # [S, B]
        if len(self.known) == len(active) > 0:
            found = torch.stack(self.known)
        elif len(self.shares) == len(active) > 0:
            found = self.weights().sum(-1)
        else:
            return None
        total = torch.where(active, found.float().cpu(), 0.0).sum(0)
        return total / active.sum(0).clamp_min(1)

    def weights(self) -> Tensor:
        """The probability of every node's path, 1 of the root: [S, B, N + 1]."""
        share = torch.stack(self.shares)
        if self.children:
            child = torch.stack(self.children).flatten(-2)  # [S, B, (N + 1) K]
            share = share * torch.zeros_like(share).scatter(-1, child, 1.0)
        share[..., 0] = 1.0
        parents = torch.stack(self.parents).expand(len(share), -1, -1)
        weights = share
        for _ in range(self.levels - 1):
            weights = share * weights.gather(-1, parents)
        return weights


def expected_of(draft: Draft) -> Tensor:
    """Of a single draft with drawn children, [B] float32."""
    one = Expected()
    one.note(draft)
    return one.weights().sum(-1)[0]
