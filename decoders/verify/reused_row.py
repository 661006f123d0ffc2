"""The released noise of SCD-GS (decoders.md (c)): the first and the last codes of an image are
drawn one by one, and all with the same row of Gumbel numbers, as the table of rows only moves on in
steps of several codes. So these codes are correlated: biased.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import Draft, Law, Settled, Start
from decoders.kinds import Amount, Within
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact
from decoders.verify.gumbel import drawn


class ReusedRow(ByNode):
    """first, last: how many codes at an image's begin and end are drawn one by one. Drafts there
    are thrown away; all other places have the exact tests."""

    def __init__(
        self,
        model: Any = None,
        first: Annotated[int, Within(0, 10**6)] = 3,
        last: Amount = 10,
    ) -> None:
        super().__init__(Exact(model))
        self.first, self.last = first, last

    def __str__(self) -> str:
        return f"exact, one row for the first {self.first} and last {self.last}"

    def begin(self, start: Start) -> Tensor:
        """The state: where the last codes begin, []."""
        end = max(start.model.target.length - self.last, 0)
        return torch.full((), end, device=start.first.device)

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`."""
        made = super().decide(law, draft, noise, place, state)
        alone = (place < self.first) | (place >= state)  # [B]
        if law.greedy:
            code = law.logits[:, 0].argmax(-1)
        else:
            p = law.p[:, 0]
            code = drawn(p, noise.gumbel(torch.zeros_like(place), p.shape[-1]))
        wide = alone[:, None]
        return replace(
            made,
            nodes=torch.where(wide, 0, made.nodes),
            count=torch.where(alone, 0, made.count),
            last_code=torch.where(alone, code, made.last_code),
            bonus=made.bonus | alone,
        )
