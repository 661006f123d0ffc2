"""Several Jacobi chains under one root: PathSpec (2606.10492, decoders.md).

Each of K chains is a window of its own: redrawn from the target's laws read along its own drafts,
and declared so. `Paths` commits one of them. Exact: the chains' first drafts are tested one after
the other, each against what the ones before have left of p, and the first that passes is followed.

As released (`longest`) every chain is tested alone, and the one with the longest accepted prefix is
committed. That makes accepted codes too likely: with K drafts from one q and b = sum min(p, q),
A = 1 - (1 - b)^K, a code's law is A min(p, q) / b + (1 - A) norm((p - q)+).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Law,
    Proposer,
    ProposerSession,
    Seen,
    Settled,
    Start,
    Verifier,
)
from decoders.distribution import pick
from decoders.kinds import Within
from decoders.noise import (
    ACCEPT_SLOT,
    DRAFT_SLOT,
    MAX_CHILDREN,
    NODE_SLOT,
    OVERRUN,
    TARGET_SLOT,
    sample,
)
from decoders.propose.window import Places, fresh_uniforms, pick_rows, redrawn
from decoders.verify.by_node import settled
from decoders.verify.children import at_node
from decoders.verify.exact import ratio, residual


@dataclass
class Chains(Draft):
    """Level l of chain k (from 0) is node 1 + k D + l. To whom knows no chains it is the first one:
    the root's only child is that one's first draft. laws [B, K, D, V]: of every draft."""

    laws: Tensor | None = None


class PathSpec(Proposer):
    """chains: K; depth: D, drafts of each."""

    branching, reads_laws = 1, True

    def __init__(
        self,
        model: Any,
        chains: Annotated[int, Within(1, MAX_CHILDREN)] = 2,
        depth: Annotated[int, Within(1, OVERRUN - 1)] = 12,
    ) -> None:
        del model  # a start has it
        self.chains, self.depth, self.nodes = chains, depth, chains * depth

    def __str__(self) -> str:
        return f"pathspec(chains={self.chains}, depth={self.depth})"

    def begin(self, start: Start) -> PathSpecSession:
        return PathSpecSession(self, start)


class PathSpecSession(ProposerSession):
    """It keeps nothing: all that it needs is in what was seen."""

    calls = 0

    def __init__(self, part: PathSpec, start: Start) -> None:
        device = start.first.device
        self.part, self.greedy = part, start.sampling.greedy
        self.kind = Places.of(start.model.target)
        self.span = torch.arange(part.depth, device=device)  # [D]
        node = torch.arange(part.nodes + 1, device=device)  # [N + 1]
        level = torch.where(node > 0, (node - 1) % part.depth + 1, 0)
        self.parents = torch.where(level > 1, node - 1, 0)
        self.level = level
        self.children = torch.where(level < part.depth, node + 1, 0)[:, None]  # [N + 1, 1]
        chain = torch.where(node > 0, (node - 1) // part.depth, -1)
        same = (chain[:, None] == chain) & (level[:, None] >= level)
        self.ancestry = same | (node == 0)  # [N + 1, N + 1]

    def propose(self, seen: Seen, noise: Any, place: Tensor) -> Draft:
        """See `decoders.api.ProposerSession`."""
        part, span, batch = self.part, self.span, len(place)
        assert seen.p is not None
        level = seen.count[:, None] + span  # [B, D], the old level that a law is read at
        first = torch.arange(part.chains, device=place.device)[:, None] * part.depth  # [K, 1]
        node = first + level.clamp_max(part.depth)[:, None]  # [B, K, D]
        law = pick_rows(seen.p, node.flatten(1))  # [B, K D, V]
        told = (level <= part.depth)[:, None].expand_as(node).flatten(1) & (law.sum(-1) > 0)
        places = place[:, None] + span  # [B, D]
        u = fresh_uniforms(noise, places, DRAFT_SLOT, part.chains).transpose(1, 2)  # [B, K, D]
        root = seen.codes.gather(1, seen.count[:, None] - 1)  # [B, 1]
        asked = self.kind, root, seen.image, places.repeat(1, part.chains)
        codes, laws = redrawn(law, told, u.flatten(1), asked, self.greedy)  # [B, K D], with V
        shape = part.chains, part.depth
        share = pick(laws, codes).unflatten(1, shape).cumprod(-1)  # [B, K, D]
        q = None
        if not self.greedy:  # of each node's child
            q = torch.cat([laws, laws[:, -1:]], 1)
        codes = torch.cat([root, codes], 1)
        parents, level, children, ancestry = (
            t.expand(batch, *t.shape)
            for t in (self.parents, self.level, self.children, self.ancestry)
        )
        return Chains(
            codes, parents, level, children, q, ancestry, part.depth,
            expected=1 + share.sum((1, 2)), laws=laws.unflatten(1, shape),
        )  # fmt: skip


class Paths(Verifier):
    """Commits one of several chains. longest: as released, the longest accepted prefix of chains
    that are each tested alone; biased."""

    def __init__(self, model: Any = None, longest: bool = False) -> None:
        del model  # it needs nothing from it
        self.longest = longest

    def __str__(self) -> str:
        return "paths, the longest" if self.longest else "paths, one after the other"

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`. Raises DecoderError for drafts that are no chains."""
        if not isinstance(draft, Chains) or draft.laws is None:
            raise DecoderError("this verifier judges chains side by side; use proposer=pathspec")
        shape = draft.laws.shape[1:3]  # K, D
        x = draft.codes[:, 1:].unflatten(1, shape)  # [B, K, D]
        if law.greedy:
            hit = self.before(law.logits, shape).argmax(-1) == x
            left, after = draft.laws, law.p[:, 0]  # not read
        else:
            hit, left, after = self.tested(law.p, draft.laws, x, noise, place)
        count = hit.int().cumprod(-1).sum(-1)  # [B, K]
        order = torch.arange(shape[0], device=x.device)
        good = count * shape[0] if self.longest or law.greedy else (count > 0) * shape[0]
        chain = (good - order).argmax(1)  # [B], the first of equal ones
        kept = count.gather(1, chain[:, None])[:, 0]  # [B]
        span = torch.arange(shape[1] + 1, device=x.device)  # [D + 1]
        level = torch.minimum(span, kept[:, None])
        nodes = torch.where(level > 0, chain[:, None] * shape[1] + level, 0)  # [B, D + 1]
        end = nodes[:, -1]
        if law.greedy:
            last = at_node(law.logits, end).argmax(-1)
        else:
            miss = chain * shape[1] + kept.clamp_max(shape[1] - 1)
            rest = torch.where((kept > 0)[:, None], at_node(left.flatten(1, 2), miss), after)
            rest = torch.where((kept == shape[1])[:, None], at_node(law.p, end), rest)
            last = sample(rest, noise.at(place + kept, TARGET_SLOT)[:, 0])
        return settled(nodes, kept, last, kept == shape[1])

    def before(self, values: Tensor, shape: torch.Size) -> Tensor:
        """values [B, N + 1, V] of every draft's parent, [B, K, D, V]."""
        own = values[:, 1:].unflatten(1, shape)
        root = values[:, :1, None].expand(-1, shape[0], 1, -1)
        return torch.cat([root, own[:, :, :-1]], 2)

    def tested(
        self, p: Tensor, q: Tensor, x: Tensor, noise: Any, place: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which drafts x [B, K, D] pass, what is left of p at each [B, K, D, V], and what is left
        of it at the root once all have failed [B, V]."""
        above = self.before(p, x.shape[1:])
        rest = p[:, 0]
        if self.longest:
            rest = residual(rest, q[:, 0, 0], x[:, 0, 0])
            u = noise.at(place, NODE_SLOT * (1 + ACCEPT_SLOT), x[0].numel()).view(x.shape)
            return u < ratio(pick(above, x), q, x), residual(above, q, x), rest
        firsts = []
        for k in range(x.shape[1]):
            firsts.append(rest)
            rest = residual(rest, q[:, k, 0], x[:, k, 0])
        above = torch.cat([torch.stack(firsts, 1)[:, :, None], above[:, :, 1:]], 2)
        accept = ratio(pick(above, x), q, x)  # [B, K, D]
        places = place[:, None] + torch.arange(1, x.shape[-1], device=x.device)  # [B, D - 1]
        hit = noise.at(place, ACCEPT_SLOT, x.shape[1])[..., None] < accept[:, :, :1]  # [B, K, 1]
        if x.shape[-1] > 1:
            lower = noise.at(places, ACCEPT_SLOT)[..., 0][:, None]  # of a place one test decides
            hit = torch.cat([hit, lower < accept[:, :, 1:]], 2)
        return hit, residual(above, q, x), rest
