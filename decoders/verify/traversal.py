"""Traversal verification of a tree of drawn children (Weng et al., 2505.12398): from the leaves to
the root, so that a path is rejected code by code from its end. Exact; on a chain it is block
verification.

A node has a weight alpha (the root 1), the target's distribution m and the drafter's distribution s
after it. A child t of it gets alpha_t = min(1, alpha m(t) / s(t)). A node without (remaining)
children is accepted with probability alpha: the path to it is committed, the next code drawn from
its m. Else it is removed from its parent, where

    R = sum (alpha m - s)+,  m <- norm((alpha m - s)+),  alpha <- R / (R + 1 - alpha),
    s <- norm(s without t),

and the next sibling follows. A node's weight depends on earlier nodes having been removed, never on
the uniforms. So all weights are computed first, level by level; then the uniforms choose the first
accepted node in the order of removal, children before parents.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, TargetProbs, Verified, Verifier
from decoders.cache import ancestry_of
from decoders.distribution import drop_sibling, normalised, pick
from decoders.noise import ACCEPT_SLOT
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import (
    TokenVerifier,
    at_node,
    children_of,
    code_behind,
    nodes_before,
    path_to,
    sibling_ranks,
)

AT_TEMPERATURE_ZERO = TokenVerifier(Exact())


class WholeDraft(Verifier):
    """A verifier that judges all nodes of a draft together, by the distributions that they were
    drawn from: drafts below one that a single test would reject still count. A subclass says how,
    for sampling. Greedy decoding has nothing to gain: it commits the longest path of argmax codes,
    as the exact rule does."""

    resamples_noise = True

    def __init__(self, model: Any = None) -> None:
        del model

    def verify(
        self, probs: TargetProbs, draft: Draft, noise: Any, position: Tensor, state: Any
    ) -> Verified:
        """See `decoders.api.Verifier`. Raises DecoderError for deterministic children."""
        if probs.greedy:
            return AT_TEMPERATURE_ZERO.verify(probs, draft, noise, position, state)
        return self.judge(probs.p, draft, noise, position)

    def judge(self, p: Tensor, draft: Draft, noise: Any, position: Tensor) -> Verified:
        """As `verify`; p [B, N + 1, V]."""
        raise NotImplementedError("a verifier of whole drafts says how it judges them")


class Traversal(WholeDraft):
    """For trees whose children are drawn without replacement, in order."""

    def __str__(self) -> str:
        return "traversal"

    def judge(self, p: Tensor, draft: Draft, noise: Any, position: Tensor) -> Verified:
        q = drawn_from(draft, "traversal verification")
        alpha, m = weights(p, q, draft)  # [B, N + 1], [B, N + 1, V]
        u = noise.of_nodes(position, ACCEPT_SLOT, draft.codes.shape[1], 1)[..., 0]  # [B, N + 1]
        above = ancestry_of(draft)
        hit = u < alpha
        hit[:, 0] = True  # the root is left once all other nodes are removed
        order = torch.where(hit, turn(draft, above), draft.codes.shape[1])
        node = order.argmin(1)  # [B]
        count = draft.depth.gather(1, node[:, None])[:, 0]
        last = code_behind(m, node, noise, position + count)
        bonus = ~at_node(draft.children > 0, node).any(-1)
        return exactly_verified(path_to(draft, above, node, draft.levels), count, last, bonus)


def weights(p: Tensor, q: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """alpha [B, N + 1] and m [B, N + 1, V] of every node once all nodes below it are removed; alpha
    is 0 at unused nodes. Level by level: at the nodes with children where the draft says which
    (`Draft.inner`), else at all nodes."""
    codes, valid = children_of(draft)  # [B, N + 1, K]
    every = (torch.arange(codes.shape[1], device=p.device),) * draft.levels
    down = torch.zeros_like(p[..., 0])  # alpha before anything was removed
    alpha, m = down.clone(), p.clone()
    for nodes in draft.inner or every:
        down[:, 0] = 1.0  # also where `children` says 0: there is no child
        rows = (t.index_select(1, nodes) for t in (p, q, codes, valid, down))
        below, after, probs = remove_children(*rows)  # [B, n, K], [B, n], [B, n, V]
        index = draft.children.index_select(1, nodes).flatten(1)  # [B, n K]
        down.scatter_(1, index, below.flatten(1))
        alpha.index_copy_(1, nodes, after)
        m.index_copy_(1, nodes, probs)
    return torch.where(valid.any(-1), alpha, down), m


def remove_children(
    p: Tensor, q: Tensor, codes: Tensor, valid: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """p, q [B, n, V]; codes, valid [B, n, K]; alpha [B, n] with all children there -> the weights
    of the children [B, n, K], and alpha and m once all children are removed."""
    m, s, below = p, q, []
    for j in range(codes.shape[-1]):
        x, real = codes[..., j], valid[..., j]
        ratio = alpha * pick(m, x) / pick(s, x).clamp_min(1e-30)
        below.append(torch.where(real, ratio.clamp_max(1.0), 0.0))
        left = (alpha[..., None] * m - s).clamp_min(0.0)  # [B, n, V]
        mass = left.sum(-1)
        open_ = mass + 1 - alpha
        next_alpha = torch.where(open_ > 0, mass / open_.clamp_min(1e-30), 1.0)
        alpha = torch.where(real, next_alpha, alpha)
        m = torch.where(real[..., None], normalised(left, m), m)
        s = torch.where(real[..., None], drop_sibling(s, x), s)
    return torch.stack(below, -1), alpha, m


def turn(draft: Draft, above: Tensor) -> Tensor:
    """[B, N + 1]: a node's place in the order of removal: after all nodes below it, and below the
    earlier siblings of it and of the nodes above it."""
    return nodes_before(draft, above, sibling_ranks(draft)) + above.sum(1) - 1


def drawn_from(draft: Draft, name: str) -> Tensor:
    """q [B, N + 1, V]. Raises DecoderError where the children are deterministic."""
    if draft.q is None:
        raise DecoderError(
            f"{name} judges drafts by the distribution q that they were drawn from; these are "
            "deterministic (a dynamic tree takes the likeliest codes) and have none; use a tree "
            "that draws its children (tree=chain, tree=static), or acceptance=exact"
        )
    return draft.q


def exactly_verified(nodes: Tensor, count: Tensor, last: Tensor, bonus: Tensor) -> Verified:
    """What an exact verifier returns: no TV shift, no draft that only a relaxed rule accepts."""
    none = torch.zeros(nodes.shape, device=nodes.device)  # [B, D + 1]
    return Verified(nodes, count, last, bonus, none, none, none[:, 1:].bool())
