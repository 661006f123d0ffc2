"""A rule judges every node's children, the uniforms decide, and the path is walked: the verifier of
every acceptance rule."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import AcceptRule, DecoderError, Draft, TargetProbs, Verified, Verifier, completed
from decoders.noise import ACCEPT_SLOT, BELOW_ONE, TARGET_SLOT, inverted
from decoders.verify.children import (
    Path,
    Verdicts,
    at_node,
    children_of,
    longest,
    test_children,
    walk,
)
from decoders.verify.exact import Exact


class TokenVerifier(Verifier):
    """rule: judges one draft given p and q, see `decoders.api.AcceptRule`."""

    def __init__(self, rule: AcceptRule) -> None:
        self.rule: AcceptRule = completed(rule, AcceptRule)

    def __str__(self) -> str:
        return str(self.rule)

    def verify(
        self, law: TargetProbs, draft: Draft, noise: Any, place: Tensor, state: Any
    ) -> Verified:
        """See `decoders.api.Verifier`."""
        codes, valid = children_of(draft)  # [B, N + 1, K]
        verdicts = self.verdicts(law, draft, codes, valid, place)
        if law.greedy:
            u = torch.full_like(verdicts.accept, 0.5)
        else:
            u = self.tests(noise, place[:, None] + draft.depth, codes.shape[-1])
        path = self.path(law, draft, (u < verdicts.accept) & valid)
        moved, bound, relaxed = along_path(path, verdicts, u)
        bonus = ~at_node(valid, path.last).any(-1)  # [B]
        last = self.last_code(law, verdicts, path, noise, place)
        return Verified(path.nodes, path.count, last, bonus, moved, bound, relaxed)

    def verdicts(
        self, law: TargetProbs, draft: Draft, codes: Tensor, valid: Tensor, place: Tensor
    ) -> Verdicts:
        """On every child of every node; codes, valid [B, N + 1, K]."""
        rule = self.rule if self.rule.at is None else self.rule.at(draft, place)
        if not law.greedy:
            return test_children(rule, law.p, draft.q, codes, valid)
        judged = rule.greedy(law.p[:, :, None], codes)  # p [B, N + 1, 1, V]: once a node
        accept, strict, moved, bound = (
            torch.where(valid, value, 0.0)
            for value in (judged.accept, judged.strict, judged.moved, judged.bound)
        )
        return Verdicts(accept, strict, moved, bound, residual=law.p)

    def tests(self, noise: Any, places: Tensor, count: int) -> Tensor:
        """The uniforms of `count` children of every node, [B, N + 1, count]; places [B, N + 1]."""
        return noise.at(places, ACCEPT_SLOT, count)

    def path(self, law: TargetProbs, draft: Draft, accepted: Tensor) -> Path:
        """Sampling: the first accepted child of every node, which is exact. Greedy: the longest
        accepted path (METHODS 6). accepted [B, N + 1, K] bool."""
        follow = longest if law.greedy else walk
        return follow(draft, accepted, draft.levels)

    def last_code(
        self, law: TargetProbs, verdicts: Verdicts, path: Path, noise: Any, place: Tensor
    ) -> Tensor:
        """The corrected or bonus code behind the path, [B]."""
        if law.greedy:
            return at_node(law.logits, path.last).argmax(-1)
        u = noise.at((place + path.count)[:, None], TARGET_SLOT)[:, 0]  # [B, 1]
        return inverted(at_node(verdicts.residual, path.last), u.clamp_max(BELOW_ONE))[:, 0]


def along_path(path: Path, verdicts: Verdicts, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(moved, bound, relaxed) at each depth of the path, [B, D + 1], [B, D + 1], [B, D].

    Past the accepted drafts: the first child that was tested and rejected.
    """
    batch, _, width = u.shape
    depth = path.order.shape[1]
    flat = path.nodes * width + F.pad(path.order, (0, 1))  # [B, D + 1] (node, child taken)
    taken = flat.clamp_max(u.shape[1] * width - 1)
    moved = verdicts.moved.reshape(batch, -1).gather(1, taken)
    bound = verdicts.bound.reshape(batch, -1).gather(1, taken)
    relaxed = (u >= verdicts.strict).reshape(batch, -1).gather(1, taken[:, :depth])
    return moved, bound, relaxed


# ---- verifiers of whole drafts ------------------------------------------------------------------
# They judge a draft by the laws that it was drawn from, all nodes at once, so that drafts behind a
# rejected one still count (2403.10444, 2505.12398).

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


def settled(nodes: Tensor, count: Tensor, last: Tensor, bonus: Tensor) -> Verified:
    """Of an exact verifier: nothing is moved, no draft is accepted by a relaxed rule alone."""
    none = torch.zeros(nodes.shape, device=nodes.device)  # [B, D + 1]
    return Verified(nodes, count, last, bonus, none, none, none[:, 1:].bool())
