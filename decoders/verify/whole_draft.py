"""Verifiers of whole drafts judge a draft by the laws that it was drawn from, all nodes at once, so
that drafts behind a rejected one still count (2403.10444, 2505.12398)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, TargetProbs, Verified, Verifier
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier

AT_TEMPERATURE_ZERO = TokenVerifier(Exact())


class WholeDraft(Verifier):
    """A subclass judges while sampling. Greedy decoding has nothing to gain from the whole draft:
    the longest path of argmax codes is committed, as with the exact rule."""

    resamples_noise = True

    def __init__(self, model: Any = None) -> None:
        del model  # it needs nothing from it

    def verify(
        self, law: TargetProbs, draft: Draft, noise: Any, place: Tensor, state: Any
    ) -> Verified:
        """See `decoders.api.Verifier`. Raises DecoderError for deterministic children."""
        if law.greedy:
            return AT_TEMPERATURE_ZERO.verify(law, draft, noise, place, state)
        return self.judge(law.p, draft, noise, place)

    def judge(self, p: Tensor, draft: Draft, noise: Any, place: Tensor) -> Verified:
        """As `verify`; p [B, N + 1, V]."""
        raise NotImplementedError("a verifier of whole drafts says how it judges them")


def drawn_from(draft: Draft, name: str) -> Tensor:
    """q [B, N + 1, V]. Raises DecoderError where the children are deterministic."""
    if draft.q is None:
        raise DecoderError(
            f"{name} judges drafts by the law q that they were drawn from; these are deterministic "
            "(a dynamic tree takes the likeliest codes) and have none; use a tree that draws its "
            "children (tree=chain, tree=static), or acceptance=exact"
        )
    return draft.q


def exactly_verified(nodes: Tensor, count: Tensor, last: Tensor, bonus: Tensor) -> Verified:
    """Of an exact verifier: the TV shift is 0, no draft is accepted by a relaxed rule alone."""
    none = torch.zeros(nodes.shape, device=nodes.device)  # [B, D + 1]
    return Verified(nodes, count, last, bonus, none, none, none[:, 1:].bool())
