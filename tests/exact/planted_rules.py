"""Verifiers and rules with one planted error each, and right ones (see `tests.exact.planted`)."""

from copy import copy
from dataclasses import replace

import torch

from decoders.api import Acceptance
from decoders.distribution import normalised, pick
from decoders.noise import ACCEPT_SLOT, PLUGIN_SLOT, Noise
from decoders.verify.cool_sd import Lenience
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern
from decoders.verify.token_verifier import TokenVerifier
from tests.exact.planted import changed, finds, half, judging

# ---- verifiers ----------------------------------------------------------------------------------


def largest(p, count=64):
    """p without all but its largest entries."""
    return torch.where(p < p.topk(min(count, p.shape[-1])).values[..., -1:], 0.0, p)


def stale_test_children(usual, law, draft, codes, valid, position):
    if law.greedy:
        return usual(law, draft, codes, valid, position)
    rule, p, q = usual.__self__.rule, law.p, draft.q
    columns = {"accept": [], "strict": [], "tv_shift": [], "bound": []}
    for j in range(codes.shape[-1]):
        test = rule.test(p, q, codes[..., j])
        for name, values in columns.items():
            values.append(torch.where(valid[..., j], getattr(test, name), 0.0))
        p = torch.where(valid[..., j, None], test.residual, p)
    return Acceptance(**{n: torch.stack(v, -1) for n, v in columns.items()}, residual=p)


def one_node_up(usual, law, verdicts, path, *rest):
    above = path.nodes.gather(1, (path.count - 1).clamp_min(0)[:, None])[:, 0]
    return usual(law, verdicts, replace(path, last=above), *rest)


def three_of_four(usual, law, draft, codes, valid, position):
    found = usual(law, draft, codes, valid, position)
    others = valid & (torch.arange(valid.shape[-1]) < 3)
    before = usual(law, draft, codes, others, position).residual
    return replace(
        found, residual=torch.where(valid[..., 3:].any(-1, True), before, found.residual)
    )


def tested_at(positions_of):
    """Acceptance numbers of other positions, a function of the nodes' own."""
    return judging(tests=lambda usual, noise, at, count: usual(noise, positions_of(at), count))


class SharedAcceptNoise(Noise):
    """All siblings are tested with the first one's uniform."""

    def at(self, position, slot, count=1):
        found = super().at(position, slot, count)
        return found[..., :1].expand_as(found) if slot == ACCEPT_SLOT else found


class ThreeOfFour(changed(TokenVerifier, verdicts=three_of_four)):
    """The residual of a node with four children forgets the last."""

    def __init__(self, model):
        super().__init__(Exact())


# (1) q_j still holds the rejected siblings: only p is updated after a rejection.
StaleQ = judging(verdicts=stale_test_children)
# (2) The longest accepted path instead of the first accepted child.
LongestPath = judging(path=lambda usual, law, *rest: usual(replace(law, greedy=True), *rest))
# (4) The code after the path is sampled at the parent of its last node.
BonusAtParent = judging(last_code=one_node_up)
# (8) One accept uniform for all siblings.
SharedUniform = judging(
    verify=lambda usual, law, draft, noise, *rest: usual(
        law, draft, SharedAcceptNoise(noise.uniform), *rest
    )
)
# (t1) From depth 4 on, the acceptance number is that of the level above.
DeepTwin = tested_at(lambda at: at - (torch.arange(at.shape[1]) >= 3).long())  # of a chain
# A single position is tested with the number of the one before it.
PlaceTwice = tested_at(lambda at: torch.where(at == 100, 99, at))
# The numbers of positions from 150 on are those of 150 positions before.
LateNumbers = tested_at(lambda at: torch.where(at >= 150, at - 150, at))
# (w2) The residual is cut to its 64 largest codes, once the path is known.
LargestLast = judging(
    last_code=lambda usual, law, verdicts, *rest: usual(
        law, replace(verdicts, residual=largest(verdicts.residual)), *rest
    )
)
# Tells the rule that the draft lies one level deeper.
DeeperLoop = judging(
    verdicts=lambda usual, law, draft, *rest: usual(
        law, replace(draft, depth=draft.depth + 1, levels=draft.levels), *rest
    )
)
# Right: tests read a plug-in's own numbers.
OwnNumbers = judging(
    tests=lambda _, noise, positions, count: noise.at(positions, PLUGIN_SLOT, count)
)

# ---- rules --------------------------------------------------------------------------------------


class SelfNeighbour(Lantern):
    """(5) x is its own nearest neighbour, so p(x) counts twice."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        own = torch.arange(len(self.table), dtype=self.table.dtype)[:, None]
        self.table = torch.cat([own, self.table], 1)[:, : self.table.shape[1]]


class GenerousGreedy(Lantern):
    """(12) Accepts at temperature 0 whenever p_A(x) is half of the peak."""

    def greedy(self, p, x):
        found = super().greedy(p, x)
        hit = (pick(p, x) + found.tv_shift >= 0.5 * p.amax(-1)).float()
        return replace(found, accept=torch.maximum(found.accept, hit))


class NoBound(Lantern):
    """(14) Accepts everything and declares a bound that is no number."""

    def test(self, p, q, x):
        found = super().test(p, q, x)
        entropy = (p * p.log2() / 0.0).sum(-1)  # NaN: the bound of a careless rule
        return replace(found, accept=torch.ones_like(found.accept), bound=0 * entropy)

    def greedy(self, p, x):
        found = super().greedy(p, x)
        nan = torch.full_like(found.bound, torch.nan)
        return replace(found, accept=torch.ones_like(found.accept), bound=nan, tv_shift=nan)


class DeepOnly(Exact):
    """Takes every draft of level 3 and declares nothing; exact at all others."""

    free = None

    def at(self, draft, position):
        made = copy(self)
        made.free = self.where(draft.depth, position[:, None])
        return made

    def where(self, depth, position):
        return depth == 2

    def test(self, p, q, x):
        found = super().test(p, q, x)
        return replace(found, accept=torch.where(self.free, 1.0, found.accept))


class MiddleOnly(DeepOnly):
    """The same at positions 9 to 26 of an image."""

    def where(self, depth, position):
        return (position + depth >= 9) & (position + depth < 27)


class OutsideUnsaid(Lantern):
    """Commits codes that the target rules out, and does not say so."""

    beyond_support = False


# (3) The residual (p - q)+ as it is: harmless for the last draw, not for the next child.
Unnormalised = finds(
    residual=lambda found, p, q, x: (
        p.scatter(-1, x[..., None], 0.0) if q is None else (p - q).clamp_min(0.0)
    )
)
# (6) Acceptance and residual from bf16 probabilities.
HalfAcceptance = changed(Exact, test=lambda usual, p, q, x: usual(half(p), half(q), x))
# (11) Moves mass, declares none.
HiddenBound = finds(Lantern, bound=lambda found, *_: torch.zeros_like(found.bound))
# (22) Commits a code of probability zero now and then.
Outside = finds(accept=lambda found, p, q, x: torch.where(pick(p, x) == 0, 0.2, found.accept))
# (w2) The residual is cut to its 64 largest codes.
LargestLeft = finds(residual=lambda found, p, q, x: normalised(largest(found.residual), p))
# Declares half of what it moves.
HalfBound = finds(Lenience, bound=lambda found, *_: found.bound / 2)
# Declares more than what it moves, so its law stays within.
Generous = finds(Lenience, bound=lambda found, *_: (found.bound + 0.2).clamp_max(1))
# Right: min(1, p / q)^1, which is exact but for the rounding of its bound.
Power = finds(bound=lambda found, *_: torch.full_like(found.bound, 5e-9))
