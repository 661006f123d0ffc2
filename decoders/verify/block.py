"""Block verification of a chain of drafts (Sun et al., 2403.10444): exact, and on average no chain
of tests accepts more.

A draft that is unlikely after likely ones is paid for by them: with
    s_0 = 1,  s_i = min(1, s_{i-1} p_i(x_i) / q_i(x_i)),
the first i drafts are acceptable with probability
    h_i = R_i / (R_i + 1 - s_i),  R_i = sum_y (s_i p_{i+1}(y) - q_{i+1}(y))+,  h_g = s_g for all g,
and the largest i whose test succeeds is taken. The next code is drawn from p after all g drafts,
else from norm((s_i p_{i+1} - q_{i+1})+).

SJD-SV (2609.13245, decoders.md (f)) has the same wish and no such weights: `Subsequences`. It is
biased.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, Draft, Settled
from decoders.distribution import normalised, pick
from decoders.kinds import Share
from decoders.noise import ACCEPT_SLOT, TARGET_SLOT, sample
from decoders.verify.by_node import WholeDraft, drawn_from, settled
from decoders.verify.children import at_node

SAME = 1e-6  # of (p - q)+: what is left of equal laws is rounding


class Block(WholeDraft):
    """For chains; a tree's verifier is `decoders.verify.traversal.Traversal`."""

    def __str__(self) -> str:
        return "block"

    def judge(self, p: Tensor, draft: Draft, noise: Any, place: Tensor) -> Settled:
        """Raises DecoderError for a tree."""
        q = chain_law(draft)
        share, left = self.shares(p, q, draft.codes[:, 1:])  # [B, g + 1], [B, g + 1, V]
        hit = tests(noise, place, draft) < self.chances(share, left)
        count = torch.where(hit, torch.arange(1, draft.levels + 1, device=p.device), 0).amax(1)
        return committed(p, left, count, noise, place)

    def shares(self, p: Tensor, q: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """s_i [B, g + 1] and what the next code is drawn from, not normalised [B, g + 1, V]; codes
        [B, g]."""
        ratio = pick(p[:, :-1], codes) / pick(q[:, :-1], codes).clamp_min(1e-30)  # [B, g]
        shares = [torch.ones_like(ratio[:, 0])]
        for i in range(codes.shape[1]):
            shares.append((shares[-1] * ratio[:, i]).clamp_max(1.0))
        s = torch.stack(shares, 1)
        left = (s[..., None] * p - q).clamp_min(0.0)
        return s, torch.cat([left[:, :-1], p[:, -1:]], 1)

    def chances(self, share: Tensor, left: Tensor) -> Tensor:
        """h_1 .. h_g, [B, g]."""
        mass = left.sum(-1)[:, 1:-1]  # [B, g - 1], R_i
        open_ = mass + 1 - share[:, 1:-1]
        inner = torch.where(open_ > 0, mass / open_.clamp_min(1e-30), 1.0)
        return torch.cat([inner, share[:, -1:]], 1)


class Subsequences(WholeDraft):
    """SJD-SV as printed. A run of drafts with p_b(x_b) <= .. <= p_e(x_e) is a block; g is the last
    draft of it from which on the p's sum up to at least `alpha` of the block's.

        e' = e, e - 1, .., g:  passes if u <= prod_{i=g..e'} p_i / q_i

    Where e itself passes the whole block is committed, b to g - 1 untested, and the next one
    follows; else b to the first e' that passes, or to g - 1, and a code from norm((p - q)+). fresh:
    a number for every e', not one for all; the paper leaves it open. Untested drafts keep the law
    q, and a draft that passes because a later one makes up for it is none of p: biased."""

    def __init__(self, model: Any = None, alpha: Share = 0.8, fresh: bool = False) -> None:
        super().__init__(model)
        self.alpha, self.fresh = alpha, fresh

    def __str__(self) -> str:
        return f"subsequences(alpha={self.alpha:g}, {'fresh' if self.fresh else 'one'})"

    def judge(self, p: Tensor, draft: Draft, noise: Any, place: Tensor) -> Settled:
        """Raises DecoderError for a tree."""
        size, q, codes = draft.levels, chain_law(draft), draft.codes[:, 1:]
        mine = pick(p[:, :-1], codes)  # [B, g], p_i(x_i)
        ratio = mine / pick(q[:, :-1], codes).clamp_min(1e-30)
        span = torch.arange(size, device=place.device)
        first, last, tested, joint = self.blocks(mine, ratio)
        u = tests(noise, place, draft)
        passed = (u if self.fresh else u.gather(1, first)) < joint
        ends = (span == last) & ~passed
        stop = torch.where(ends, span, size).amin(1, keepdim=True)  # [B, 1], end of the last block
        here = tested & (last == stop)  # of the block that does not pass whole
        count = torch.where(here & passed, span + 1, 0).amax(1)  # [B]
        count = torch.maximum(count, torch.where(here, span, size).amin(1))  # at least up to its g
        left = (p - q).clamp_min(0.0)
        left = torch.where(left.sum(-1, keepdim=True) > SAME, left, p)
        return committed(p, torch.cat([left[:, :-1], p[:, -1:]], 1), count, noise, place)

    def blocks(self, mine: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of p_i(x_i) and p_i(x_i) / q_i(x_i), [B, g] both: every draft's b and e, whether it is at
        or behind the g of its block, and the product of ratios from there to it, [B, g]."""
        size = mine.shape[1]
        span = torch.arange(size, device=mine.device)
        starts = F.pad(mine[:, 1:] < mine[:, :-1], (1, 0), value=True)  # [B, g]
        ends = F.pad(starts[:, 1:], (0, 1), value=True)
        behind = span >= span[:, None]  # [g, g]
        first = torch.where(starts[:, None] & behind.T, span, 0).amax(-1)  # [B, g], b
        last = torch.where(ends[:, None] & behind, span, size).amin(-1)  # [B, g], e
        sums = F.pad(mine.cumsum(1), (1, 0))  # [B, g + 1]
        until = sums.gather(1, last + 1)
        enough = until - sums[:, :-1] >= self.alpha * (until - sums.gather(1, first))  # up to g
        tested = ends | ~F.pad(enough[:, 1:], (0, 1))  # from g on
        joint = [torch.ones_like(mine[:, 0])]
        for i in range(size):
            before = torch.where((tested & enough)[:, i], 1.0, joint[-1])  # 1 at g
            joint.append(before * ratio[:, i])
        return first, last, tested, torch.stack(joint[1:], 1)


def chain_law(draft: Draft) -> Tensor:
    """q [B, N + 1, V] of a chain. Raises DecoderError for a tree, and for deterministic drafts."""
    size, q = draft.levels, drawn_from(draft, "block verification")
    if draft.children.shape[-1] != 1 or draft.codes.shape[1] != size + 1:
        raise DecoderError(
            f"block verification judges a chain, found a tree of {draft.codes.shape[1] - 1} "
            f"nodes on {size} levels; use tree=chain, or acceptance=traversal"
        )
    return q


def tests(noise: Any, place: Tensor, draft: Draft) -> Tensor:
    """The uniforms of a chain's tests, [B, g]."""
    level = torch.arange(draft.levels, device=place.device)
    return noise.at(place[:, None] + level, ACCEPT_SLOT)[..., 0]


def committed(p: Tensor, left: Tensor, count: Tensor, noise: Any, place: Tensor) -> Settled:
    """The first `count` [B] drafts of a chain, and a code from what is left of p behind them; p,
    left [B, g + 1, V]."""
    size = p.shape[1] - 1
    after = at_node(normalised(left, p), count)  # [B, V]
    last = sample(after, noise.at(place + count, TARGET_SLOT)[:, 0])
    nodes = torch.minimum(torch.arange(size + 1, device=place.device), count[:, None])
    return settled(nodes, count, last, count == size)
