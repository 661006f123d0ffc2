"""Errors that released code or papers of the field make (decoders.md), one planted in each decoder
here, and the right version of a proposer that carries one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from decoders.api import Draft
from decoders.distribution import normalised, pick
from decoders.loops.duo import Duo
from decoders.loops.speculative import Speculative
from decoders.loops.speculative_run import tree_mask
from decoders.noise import ACCEPT_SLOT, COUPLE_SLOT, DRAFT_SLOT, sample
from decoders.verify.block import Block
from decoders.verify.children import at_node, children_of, drop_sibling
from tests.decoders.test_contracts import Coupled
from tests.exact.planted import finds, judging, swapped


class StaleWindow(Coupled):
    """(16) A window of drafts is coupled with the target's newest laws; the declared q of a kept
    draft stays the old one (SCD's released code)."""

    def propose(self, seen: Any, noise: Any, place: torch.Tensor) -> Draft:
        made = super().propose(seen, noise, place)
        width, old = self.nodes, seen.draft
        above = (seen.count[:, None] + torch.arange(width)).clamp_max(width)  # [B, W]
        x = old.codes.gather(1, (above + 1).clamp_max(width))  # [B, W]
        q = old.q.gather(1, above[..., None].expand(-1, -1, old.q.shape[-1]))
        there = (above < width) & q.any(-1)
        kept = F.pad(there & (x == made.codes[:, 1:]), (0, 1))  # [B, W + 1]
        return replace(made, q=torch.where(kept[..., None], F.pad(q, (0, 0, 0, 1)), made.q))


class TwoWide:
    """A window of two places whose first holds two candidates (SJD-PAC, K = 2, D = 2): the coupled
    draft, and a second one drawn without replacement. Nodes: 1 and 2 under the root, 3 under 1."""

    reads_laws, branching, calls, nodes, depth = True, 2, 0, 3, 2

    def __init__(self, model: Any) -> None:
        self.model = model

    def begin(self, start: Any) -> Any:
        return self

    def propose(self, seen: Any, noise: Any, place: torch.Tensor) -> Draft:
        blank = torch.zeros_like(seen.p[:, :1])  # [B, 1, V]
        p = torch.cat([seen.p[:, [0, 1, 3]], blank, blank], 1)  # along the chain 0, 1, 3
        uniform = torch.full_like(p[:, 0], 1 / p.shape[-1])

        def ahead(k: int) -> torch.Tensor:
            law = at_node(p, seen.count + k)
            return torch.where(law.any(-1, keepdim=True), law, uniform)

        first, second = ahead(0), ahead(1)  # q of the root and of node 1, [B, V]
        q, x = seen.draft.q[:, 1], seen.draft.codes[:, 3]
        old = (seen.count == 1) & q.any(-1)  # x is a draft of the first place
        now = noise.round
        u = noise.at(place, COUPLE_SLOT, 3, now)  # [B, 3]
        kept = u[:, 0] * pick(q, x) < pick(first, x)
        other = sample(normalised((first - q).clamp_min(0), first), u[:, 1])
        fresh = sample(first, noise.at(place, DRAFT_SLOT)[:, 0])
        one = torch.where(old, torch.where(kept, x, other), fresh)
        rest = self.siblings(first, torch.where(old[:, None], q, 0.0), one)
        two = sample(rest, u[:, 2])
        below = sample(second, noise.at(place + 1, DRAFT_SLOT)[:, 0])
        root = seen.codes.gather(1, seen.count[:, None] - 1)[:, 0]
        rows = len(root)
        kids = torch.tensor([[1, 2], [3, 0], [0, 0], [0, 0]]).repeat(rows, 1, 1)
        kids[:, 0, 1] = torch.where((one == two) | (pick(rest, two) == 0), 0, 2)
        return Draft(
            torch.stack([root, one, two, below], 1),
            torch.tensor([0, 0, 0, 1]).expand(rows, -1),
            torch.tensor([0, 1, 1, 2]).expand(rows, -1),
            kids,
            torch.stack([first, second, 0 * first, 0 * first], 1),
            levels=2,
        )

    def siblings(self, p: torch.Tensor, q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The law [B, V] of the second candidate: p without x."""
        return drop_sibling(p, x)


class ResidualSiblings(TwoWide):
    """(17) The second candidate is drawn from the residual (p - q)+, while q := p is declared
    (SJD-PAC's released code)."""

    def siblings(self, p: torch.Tensor, q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return normalised((p - q).clamp_min(0), p)


class JointRatio(Block):
    """(18) A block is accepted by the ratio of its joint probabilities, with fallback to shorter
    ones; one uniform for all (SJD-SV), or with `fresh` one each."""

    def __init__(self, model: Any = None, fresh: bool = False) -> None:
        super().__init__(model)
        self.fresh = fresh

    def decide(self, law: Any, draft: Draft, noise: Any, place: Any, state: Any) -> Any:
        own = noise if self.fresh else FirstNumber(noise)
        return super().decide(law, draft, own, place, state)

    def shares(self, p: Any, q: Any, codes: Any) -> Any:
        share, _ = super().shares(p, q, codes)
        left = torch.cat([(p - q).clamp_min(0)[:, :-1], p[:, -1:]], 1)
        ratio = (pick(p[:, :-1], codes) / pick(q[:, :-1], codes)).cumprod(1)
        return torch.cat([share[:, :1], ratio.clamp_max(1)], 1), left

    def chances(self, share: Any, left: Any) -> Any:
        return share[:, 1:]


class FirstNumber:
    """Every test of a draft reads the number of its first place."""

    def __init__(self, noise: Any) -> None:
        self.noise = noise

    def at(self, position: Any, slot: int, count: int = 1) -> Any:
        found = self.noise.at(position, slot, count)
        return found[:, :1].expand_as(found) if slot == ACCEPT_SLOT else found


class KeptRow(Speculative):
    """(19) Keys and values of the rejected draft stay: the corrected code is never run."""

    def forward(self, run: Any, draft: Draft, mask: Any) -> Any:
        root = getattr(run, "rejected", draft.codes[:, 0])
        stale = replace(draft, codes=torch.cat([root[:, None], draft.codes[:, 1:]], 1))
        return draft, *super().forward(run, stale, mask)[1:]

    def settle(self, run: Any, draft: Draft, *rest: Any) -> Any:
        done = super().settle(run, draft, *rest)
        codes, valid = children_of(draft)
        nodes, count = done[3], done[4]
        last = nodes.gather(1, count[:, None])[:, 0]
        root = run.seen.codes.gather(1, run.seen.count[:, None] - 1)[:, 0]
        tested = at_node(valid, last)[:, 0]
        run.rejected = torch.where(tested, at_node(codes, last)[:, 0], root)
        return done


def even_place(usual: Any, law: Any, verdicts: Any, path: Any, noise: Any, place: Any) -> Any:
    odd = (place + path.count) % 2
    return usual(law, verdicts, path, noise, place - odd)


def likeliest(_: Any, law: Any, verdicts: Any, path: Any, *rest: Any) -> Any:
    return at_node(verdicts.residual, path.last).argmax(-1)


# (20) Two places in a row read the same number for their last code.
RowTwice = judging(last_code=even_place)
# (21) The code behind the path is the likeliest one, not a sample (Medusa's `fast`).
ArgmaxRoot = judging(last_code=likeliest)
# (22) Commits a code of probability zero now and then.
Outside = finds(accept=lambda found, p, q, x: torch.where(pick(p, x) == 0, 0.2, found.accept))


class EmptySlot(Speculative):
    """(23) The slot behind the draft, which was never written, is visible to attention."""

    def draft(self, run: Any) -> Any:
        def opened(run: Any, draft: Draft, base: Any, copies: int) -> Any:
            seen = tree_mask(run, draft, base, copies)
            behind = torch.arange(seen.shape[-1]) == base + draft.codes.shape[1]  # [B, S]
            return seen | behind.repeat(copies, 1)[:, None]

        with swapped("tree_mask", opened):
            return super().draft(run)


class KeptOn(Duo):
    """(24) What the drafter went on with is kept after a rejection, where it stands."""

    def kept(self, run: Any, count: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(count).bool()

    def settle(self, run: Any, *given: Any) -> Any:
        done = super().settle(run, *given)
        run.session.kept.copy_(self.kept(run, done[4]))
        return done


class KeptBehind(KeptOn):
    """Not wrong: what goes on from a last draft that was rejected is kept under the corrected code.
    Its law was fixed before the test, and is declared as it was."""

    def kept(self, run: Any, count: torch.Tensor) -> torch.Tensor:
        root = run.seen.codes.gather(1, run.seen.count[:, None] - 1)
        run.session.codes[:, :1] = root
        return count == self.proposer.depth


class Squared(Coupled):
    """Not wrong, but a number goes through a function that has no threshold to be seen."""

    def propose(self, seen: Any, noise: Any, place: torch.Tensor) -> Draft:
        noise.at(place, DRAFT_SLOT).square()
        return super().propose(seen, noise, place)
