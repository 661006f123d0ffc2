"""What verifiers of whole drafts share. They judge a draft by the laws that it was drawn from, all
nodes at once, so that drafts behind a rejected one still count (2403.10444, 2505.12398)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Law, Settled
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact


class AtTemperatureZero:
    """Greedy decoding has nothing to gain from the whole draft: the longest path of argmax codes is
    committed, as with the exact rule."""

    def __init__(self) -> None:
        self.verifier = ByNode(Exact())

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor) -> Settled:
        return self.verifier.decide(law, draft, noise, place, None)


def drawn_from(draft: Draft, name: str) -> Tensor:
    """q [B, N + 1, V]. Raises DecoderError where the children are deterministic."""
    if draft.q is None:
        raise DecoderError(
            f"{name} judges drafts by the law q that they were drawn from; these are deterministic "
            "(a dynamic tree takes the likeliest codes) and have none; use a tree that draws its "
            "children (tree=chain, tree=static), or acceptance=exact"
        )
    return draft.q


def settled(nodes: Tensor, count: Tensor, last: Tensor, bonus: Tensor) -> Settled:
    """Of an exact verifier: nothing is moved, no draft is accepted by a relaxed rule alone."""
    none = torch.zeros(nodes.shape, device=nodes.device)  # [B, D + 1]
    return Settled(nodes, count, last, bonus, none, none, none[:, 1:].bool())
