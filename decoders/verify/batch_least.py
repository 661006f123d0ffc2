"""The released batches of SJD (decoders.md (a)): all rows commit as many codes as the slowest one.

What a faster row has accepted beyond that stays in the window, tested and not committed. With
`decoders.propose.jacobi_released`, which keeps these drafts and their old q, it is the released
decoder: biased, as the tests have selected them (lemma J). A batch of one is plain SJD.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, where

from decoders.api import Draft, Law, Settled
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact


class BatchLeast(ByNode):
    """The exact tests of every row, and the batch's least count. `Settled.nodes` are each row's
    whole path, so that a proposer sees what was accepted."""

    looks_ahead = True  # a draft that stays is tested again, with a new number

    def __init__(self, model: Any = None) -> None:
        super().__init__(Exact(model))

    def __str__(self) -> str:
        return "exact, least of the batch"

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`."""
        made = super().decide(law, draft, noise, place, state)
        least = made.count.amin().expand_as(made.count)  # [B]
        more = made.count > least
        after = (least + 1).clamp_max(made.nodes.shape[1] - 1)
        node = made.nodes.gather(1, after[:, None])  # [B, 1], the first draft that waits
        last = where(more, draft.codes.gather(1, node)[:, 0], made.last_code)
        return replace(made, count=least, last_code=last, bonus=made.bonus & ~more)
