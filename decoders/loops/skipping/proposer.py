"""Drafts whose first codes stand without a test: the proposer of VVS (2511.13587, decoders.md (s)).

Every `interval`-th step asks for no forward, or in the dynamic mode every step whose draft has
paths that look alike (`Alike`). A path of the draft tree, chosen uniformly, is taken as it is, cut
to the mean codes per forward less one; the next root comes from the target's last law. The drafter
goes on from there with its old feature, and the next forward runs on the taken codes too: a skipped
and a verified step are one draft here, a chain with a tree under it. As released, the path is cut
to the mean length of this draft's paths, the next root is the draft at the cut, the drafter reads
the last features of as many codes as are taken, and nothing is skipped before six codes are there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import Draft, Proposer, ProposerSession, Seen, Start
from decoders.loops.recording import expected_of
from decoders.noise import OWN_SLOT, sample
from decoders.propose.grown import Grown, GrownSession
from decoders.propose.window import pick_rows
from decoders.verify.children import ancestry_of, table_order

UNSKIPPED = 6  # released: the place of the root's child up to which no step is skipped


@dataclass
class SkippedDraft(Draft):
    """A chain of S nodes behind the root, of which `taken` stand untested, and a tree under them.
    The chain is nobody's child, so nothing tests it; parents and depth say where it stands."""

    tree: Draft | None = None
    taken: Tensor | None = None  # [B] int64, 0 .. S
    laws: Tensor | None = None  # [B, S, V], where the chain's codes were drawn from


class Skipping(Proposer):
    """A drafter and its tree, with a skipped step before every (interval - 1)-th draft."""

    def __init__(
        self, grown: Grown, interval: int, alike: Alike | None = None, released: bool = False
    ) -> None:
        """alike: what decides instead of the interval."""
        self.grown, self.interval, self.alike, self.released = grown, interval, alike, released
        self.chain = grown.depth + 1  # S: a path, and the next root
        self.nodes, self.depth = grown.nodes + self.chain, grown.depth + self.chain
        self.branching = grown.branching

    def begin(self, start: Start) -> SkippingSession:
        return SkippingSession(self, start)


class SkippingSession(ProposerSession):
    def __init__(self, part: Skipping, start: Start) -> None:
        self.part, self.greedy = part, start.sampling.greedy
        self.inner = GrownSession(part.grown, start, part.depth + 1)
        self.first = math.isqrt(start.model.target.length)  # codes of the first row, never skipped
        self.turn = 0  # drafts so far, which `skips` counts
        self.last = torch.zeros_like(start.law)  # [B, V], the target's last law: the loop tells it
        self.steps = torch.zeros_like(start.first)  # [B], skipped ones too (released)
        old = start.hidden[:, -1:]  # [R, 1, D]
        self.cached = old.repeat(1, part.depth, 1)  # the last features (released)
        self.synchronous = start.first.device.type == "cpu"  # a look at a tensor costs nothing

    @property
    def calls(self) -> int:
        return self.inner.calls

    def require_finite(self) -> None:
        self.inner.require_finite()

    def propose(self, seen: Seen, noise: Any, place: Tensor) -> SkippedDraft:
        """A step that nothing is skipped before."""
        return unskipped(self.inner.propose(seen, noise, place))

    def wanted(self, tree: Draft, seen: Seen, place: Tensor) -> Tensor:
        """Which rows may skip a step before this draft, [B] bool; the paper's uniform mode does in
        all."""
        part, alike = self.part, self.part.alike
        found = torch.ones_like(place).bool() if alike is None else alike(tree)
        if not part.released:
            return found
        self.remember(seen)
        if alike is None:
            found = self.steps % max(part.interval, 1) == 1
        found = found & (place > UNSKIPPED)
        self.steps.add_(1 + found)
        return found

    def skips(self, wanted: Tensor) -> bool:
        """Whether a step is skipped now; asked once per draft. The dynamic mode asks the device
        only where that costs nothing: elsewhere every step drafts for a skip."""
        turn, every = self.turn, self.part.interval - 1
        self.turn += 1
        if self.part.alike is None and not self.part.released:
            return turn > 0 and every > 0 and turn % every == 0
        return turn > 0 and (not self.synchronous or bool(wanted.any()))

    def after(
        self, tree: Draft, wanted: Tensor, seen: Seen, noise: Any, place: Tensor
    ) -> SkippedDraft:
        """The draft behind a step that the rows in `wanted` skip on the tree."""
        root = tree.codes[:, :1].clone()
        codes, taken, laws = self.skip(tree, self.last, noise, place)
        taken = torch.where(wanted, taken, 0)
        tree = self.inner.propose(self.told(seen, codes, taken, place), noise, place + taken)
        return below(root, tree, codes, taken, laws)

    def skip(
        self, tree: Draft, last: Tensor, noise: Any, place: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A path at random and the root behind it, from last [B, V]: codes [B, S], how many are
        taken [B], the laws that they came from [B, S, V]."""
        u = noise.at(place, OWN_SLOT, 2)  # [B, 2]
        path, laws = random_path(tree, u[:, 0], last)  # [B, D + 1], [B, D, V]
        codes = F.pad(tree.codes.gather(1, path[:, 1:]), (0, 1))  # [B, S]
        laws = F.pad(laws, (0, 0, 0, 1))  # [B, S, V]
        length = tree.depth.gather(1, path[:, -1:])[:, 0]
        if self.part.released:
            leaf, _ = leaves(tree)
            return codes, torch.minimum(length, (leaf * tree.depth).sum(-1) // leaf.sum(-1)), laws
        mean = (place - 1) // noise.round  # [B], whole codes per forward so far
        kept = torch.minimum(length, mean - 1)
        kept = torch.where(place > self.first, kept, 0).clamp_min(0)  # [B]
        root = last.argmax(-1) if self.greedy else sample(last, u[:, 1])
        codes = codes.scatter(1, kept[:, None], root[:, None])
        at = kept[:, None, None].expand(-1, 1, laws.shape[-1])
        return codes, torch.where(kept > 0, kept + 1, 0), laws.scatter(1, at, last[:, None])

    def remember(self, seen: Seen) -> None:
        """The target's last features, those of the codes just seen behind older ones."""
        size, copies = self.cached.shape[1], len(seen.hidden) // len(seen.count)
        index = seen.count[:, None] + torch.arange(size, device=seen.count.device)  # [B, S']
        every = torch.cat([self.cached, seen.hidden], 1)
        self.cached.copy_(pick_rows(every, index.repeat(copies, 1)))

    def features(self, seen: Seen, taken: Tensor) -> Tensor:
        """What the drafter reads in the place of features of the taken codes, [R, T, D]."""
        copies, width = len(seen.hidden) // len(taken), seen.codes.shape[1]
        if not self.part.released:
            last = (seen.count - 1).repeat(copies)[:, None]  # [R, 1]
            return pick_rows(seen.hidden, last)
        size = self.cached.shape[1]
        index = size - taken[:, None] + torch.arange(width, device=taken.device)  # [B, T]
        return pick_rows(self.cached, index.clamp(0, size - 1).repeat(copies, 1))

    def told(self, seen: Seen, codes: Tensor, taken: Tensor, place: Tensor) -> Seen:
        """The taken codes with old features; of a row that skips nothing what it saw before."""
        copies = len(seen.hidden) // len(place)
        skips = taken > 0  # [B]
        old = self.features(seen, taken)
        wide = F.pad(codes, (0, seen.codes.shape[1] - codes.shape[1]))  # [B, T]
        return Seen(
            torch.where(skips.repeat(copies)[:, None, None], old, seen.hidden),
            torch.where(skips[:, None], wide, seen.codes),
            torch.where(skips, taken, seen.count),
            torch.where(skips, place, seen.start),
            seen.image,
        )


def random_path(tree: Draft, u: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """A root-to-leaf path, uniform over the leaves, u [B] -> its nodes [B, D + 1], past its end the
    leaf; and the laws of its codes [B, D, V]: the drafter's, or with deterministic children the
    shares of the leaves below each child. like [B, V]."""
    batch = len(u)
    leaf, above = leaves(tree)
    rank = (u * leaf.sum(-1)).long()[:, None]  # [B, 1]
    node = (leaf & (leaf.cumsum(-1) == rank + 1)).int().argmax(-1, keepdim=True)  # [B, 1]
    path = [node]
    for depth in reversed(range(tree.levels)):
        deeper = tree.depth.gather(1, path[-1]) > depth
        path.append(torch.where(deeper, tree.parents.gather(1, path[-1]), path[-1]))
    chosen = torch.cat(path[::-1], 1)  # [B, D + 1]
    index = chosen[:, :-1, None]
    if tree.q is not None:
        return chosen, tree.q.gather(1, index.expand(-1, -1, like.shape[-1]))
    below = (leaf[..., None] & above).sum(1).float()  # [B, N + 1], leaves at or below
    child = tree.children.gather(1, index.expand(-1, -1, tree.children.shape[-1]))  # [B, D, K]
    flat = child.flatten(1)
    share = below.gather(1, flat).view_as(child) * (child > 0)
    code = tree.codes.gather(1, flat).view_as(child)
    law = torch.zeros(batch, child.shape[1], like.shape[-1], device=u.device)
    law = law.scatter_add(2, code, share)
    return chosen, law / law.sum(-1, keepdim=True).clamp_min(1.0)


def expected_below(tree: Draft, taken: Tensor) -> Tensor | None:
    """What the drafter expects of a step: the codes that stand, [B], and what the tree says."""
    if tree.expected is not None or tree.q is None:
        return None if tree.expected is None else taken + tree.expected
    return taken + expected_of(tree)


def unskipped(tree: Draft) -> SkippedDraft:
    """The tree under the root, with an empty chain."""
    none = torch.zeros_like(tree.codes[:, 0])
    return below(tree.codes[:, :1], tree, tree.codes[:, :0], none, None)


def below(
    root: Tensor, tree: Draft, codes: Tensor, taken: Tensor, laws: Tensor | None
) -> SkippedDraft:
    """The tree under a chain: root [B, 1], codes [B, S], taken [B]; see `SkippedDraft`."""
    size = codes.shape[1]
    number = torch.arange(1, size + 1, device=codes.device)  # [S]
    stands = number <= taken[:, None]  # [B, S]
    under = taken[:, None]
    parents = torch.where(tree.parents[:, 1:] > 0, tree.parents[:, 1:] + size, under)
    children = torch.where(tree.children > 0, tree.children + size, 0)  # [B, N + 1, K]
    room = children.new_zeros(len(root), size + 1, children.shape[-1])
    at = under[..., None].expand(-1, 1, children.shape[-1])
    q = None
    if tree.q is not None:
        chain = tree.q.new_zeros(len(root), size + 1, tree.q.shape[-1])
        spot = under[..., None].expand(-1, 1, chain.shape[-1])
        q = torch.cat([chain.scatter(1, spot, tree.q[:, :1]), tree.q[:, 1:]], 1)
    return SkippedDraft(
        torch.cat([root, codes, tree.codes[:, 1:]], 1),
        torch.cat([root * 0, torch.where(stands, number - 1, 0), parents], 1),
        torch.cat([root * 0, torch.where(stands, number, 1), tree.depth[:, 1:] + under], 1),
        torch.cat([room.scatter(1, at, children[:, :1]), children[:, 1:]], 1),
        q,
        levels=size + tree.levels,
        by_leaf=tree.by_leaf,
        expected=expected_below(tree, taken),
        tree=tree,
        taken=taken,
        laws=laws,
    )


class Alike:
    """Whether the paths of a draft look alike: when the dynamic mode skips a step.

    At every level: the mean cosine between the latents of the codes of two paths, over all pairs of
    root-to-leaf paths that reach it (two paths through one node have cosine 1). The levels are
    weighed by decay^(level - 1). Where all paths would draw much the same picture, an untested one
    does little harm. The published text leaves open how pairs are weighed: this is the plain
    reading of it. As released every second path of the table is compared, and a pair of which one
    path ends before a level counts 0 there. threshold: weighted cosine above which a step is
    skipped; codebook [V, C].
    """

    def __init__(
        self, codebook: Tensor, threshold: float, decay: float, released: bool = False
    ) -> None:
        self.threshold, self.decay, self.released = threshold, decay, released
        self.latents = torch.nn.functional.normalize(codebook.float(), dim=-1)  # [V, C]

    def __call__(self, tree: Draft) -> Tensor:
        """[B] bool."""
        return self.cosine(tree) > self.threshold

    def cosine(self, tree: Draft) -> Tensor:
        """The weighted cosine, [B]; 0 of a draft with a single path."""
        leaf, above = leaves(tree)
        if self.released:
            turn = torch.where(leaf, table_order(tree, above), leaf.shape[1] ** 2)  # [B, N + 1]
            leaf = leaf & ((turn[:, None] < turn[..., None]).sum(-1) % 2 == 0)
        paths = (leaf[..., None] & above).sum(1).float()  # [B, N + 1], through every node
        level = torch.arange(1, tree.levels + 1, device=leaf.device)
        own = paths[..., None] * (tree.depth[..., None] == level)  # [B, N + 1, D]
        count = own.sum(1)  # [B, D], paths that reach a level
        total = own.transpose(1, 2) @ self.latents[tree.codes]  # [B, D, C]
        compared = leaf.sum(-1, keepdim=True).float() if self.released else count
        pairs = compared * (compared - 1)
        mean = (total.square().sum(-1) - count) / pairs.clamp_min(1)
        there = (pairs > 0) & (count > 0)
        weight = torch.where(there, self.decay ** (level - 1.0), 0.0)  # [B, D]
        return (weight * mean).sum(-1) / weight.sum(-1).clamp_min(1e-9)


def leaves(tree: Draft) -> tuple[Tensor, Tensor]:
    """The leaves that can be reached, [B, N + 1] bool, and who is above whom, [B, N + 1, N + 1]."""
    above = ancestry_of(tree)
    child = tree.children.reshape(len(tree.codes), -1)
    linked = torch.zeros_like(tree.codes).scatter(1, child, 1).bool()
    linked[:, 0] = True
    whole = (linked[:, None] | ~above).all(-1)  # [B, N + 1], nodes that can be reached
    return whole & ~(tree.children > 0).any(-1), above
