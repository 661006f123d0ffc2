"""Decoders with one planted error each, to show that the gate catches it.

Loops, verifiers, rules and trees here are subclasses of the real ones that override what the
contracts name; everything else stays as it is.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from decoders.api import Test
from decoders.distribution import pick, probabilities
from decoders.loops import speculative
from decoders.loops.speculative import Speculative
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, TARGET_SLOT, Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.dynamic import Dynamic
from decoders.verify.by_node import ByNode
from decoders.verify.children import Verdicts
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern


@contextmanager
def swapped(name, function):
    """The loop's module with another function under `name`."""
    with mock.patch.object(speculative, name, function):
        yield


def stale_test_children(rule, p, q, codes, valid):
    """q keeps the earlier siblings: only p is updated after a rejection."""
    columns = {"accept": [], "strict": [], "moved": [], "bound": []}
    for j in range(codes.shape[-1]):
        test = rule.test(p, q, codes[..., j])
        for name, values in columns.items():
            values.append(torch.where(valid[..., j], getattr(test, name), 0.0))
        p = torch.where(valid[..., j, None], test.residual, p)
    return Verdicts(**{n: torch.stack(v, -1) for n, v in columns.items()}, residual=p)


def judging(kind):
    """The loop with a verifier of class `kind` around the rule."""

    def make(model, sampling, proposer=None, verifier=None):
        rule = getattr(verifier, "rule", None)  # none: a verifier of whole drafts stays
        return Speculative(model, sampling, proposer, verifier if rule is None else kind(rule))

    return make


class StaleVerifier(ByNode):
    """(1) q_j still holds the rejected siblings."""

    def verdicts(self, law, draft, codes, valid, place):
        if law.greedy:
            return super().verdicts(law, draft, codes, valid, place)
        return stale_test_children(self.rule, law.p, draft.q, codes, valid)


class ParentVerifier(ByNode):
    """(1) Children are tested against the drafter's distribution of their grandparent."""

    def verdicts(self, law, draft, codes, valid, place):
        index = draft.parents[..., None].expand_as(draft.q)
        return super().verdicts(
            law, replace(draft, q=draft.q.gather(1, index)), codes, valid, place
        )


class LongestVerifier(ByNode):
    """(2) The longest accepted path instead of the first accepted child."""

    def path(self, law, draft, accepted):
        return super().path(replace(law, greedy=True), draft, accepted)


class BonusVerifier(ByNode):
    """(4) The code after the path is sampled at the parent of its last node."""

    def last_code(self, law, verdicts, path, noise, place):
        above = path.nodes.gather(1, (path.count - 1).clamp_min(0)[:, None])[:, 0]
        return super().last_code(law, verdicts, replace(path, last=above), noise, place)


class SharedVerifier(ByNode):
    """(8) One accept uniform for all siblings."""

    def decide(self, law, draft, noise, place, state):
        return super().decide(law, draft, SharedAcceptNoise(noise.uniform), place, state)


class TwinVerifier(ByNode):
    """(8) Draft and correction share a uniform."""

    def last_code(self, law, verdicts, path, noise, place):
        return super().last_code(law, verdicts, path, TwinNoise(noise.uniform), place)


StaleQ, ParentQ = judging(StaleVerifier), judging(ParentVerifier)
LongestPath, BonusAtParent = judging(LongestVerifier), judging(BonusVerifier)
SharedUniform, TwinUniform = judging(SharedVerifier), judging(TwinVerifier)


class Unnormalised(Exact):
    """(3) The residual (p - q)+ as it is: harmless for the last draw, not for the next child."""

    def test(self, p, q, x):
        found = super().test(p, q, x)
        left = p.scatter(-1, x[..., None], 0.0) if q is None else (p - q).clamp_min(0.0)
        return replace(found, residual=left)


class ShiftedGrid(Speculative):
    """(4) The root and its tree one cell too far in the image."""

    def forward(self, run, draft, mask):
        return draft, *super().forward(run, replace(draft, depth=draft.depth + 1), mask)[1:]


class SelfNeighbour(Lantern):
    """(5) x is its own nearest neighbour, so p(x) counts twice."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        own = torch.arange(len(self.table), dtype=self.table.dtype)[:, None]
        self.table = torch.cat([own, self.table], 1)[:, : self.table.shape[1]]


class HalfAcceptance(Exact):
    """(6) Acceptance and residual from bf16 probabilities."""

    def test(self, p, q, x):
        def half(t):
            return None if t is None else t.bfloat16().float()

        return super().test(half(p), half(q), x)


class HalfTarget(Speculative):
    """(6) The loop hands over the target's distribution rounded to bf16, then normalised."""

    def settle(self, *args):
        def half(logits, sampling):
            p = probabilities(logits, sampling).bfloat16().float()
            return p / p.sum(-1, keepdim=True)

        with swapped("law_of", half):
            return super().settle(*args)


class UnfilteredTarget(Speculative):
    """(7) top-k and top-p for the drafter only."""

    def settle(self, *args):
        def plain(logits, sampling):
            return probabilities(logits, replace(sampling, top_k=0, top_p=1.0))

        with swapped("law_of", plain):
            return super().settle(*args)


class SharedAcceptNoise(Noise):
    """All siblings are tested with the first one's uniform."""

    def at(self, position, slot, count=1):
        found = super().at(position, slot, count)
        return found[..., :1].expand_as(found) if slot == ACCEPT_SLOT else found


class TwinNoise(Noise):
    """The corrected or bonus code is drawn with the first draft's uniform."""

    def at(self, position, slot, count=1):
        return super().at(position, DRAFT_SLOT if slot == TARGET_SLOT else slot, count)


class StaleCache(Speculative):
    """(9) The accepted path's keys and values stay where the tree wrote them."""

    def settle(self, run, *args):
        with mock.patch.object(run.cache, "commit"):
            return super().settle(run, *args)


class RandomDynamic(Dynamic):
    """(10) Children that depend on the uniform they are tested with."""

    def grow(self, session, root_logits, sampling, noise, position):
        u = noise.at(position, ACCEPT_SLOT).expand_as(root_logits)
        order = torch.arange(root_logits.shape[-1])
        return super().grow(
            session, root_logits + 4 * torch.sin(40 * u + order), sampling, noise, position
        )


class HiddenBound(Lantern):
    """(11) Moves mass, declares none."""

    def test(self, p, q, x):
        found = super().test(p, q, x)
        return replace(found, bound=torch.zeros_like(found.bound))


class GenerousGreedy(Lantern):
    """(12) Accepts at temperature 0 whenever p_A(x) is half of the peak."""

    def greedy(self, p, x):
        found = super().greedy(p, x)
        hit = (pick(p, x) + found.moved >= 0.5 * p.amax(-1)).float()
        return replace(found, accept=torch.maximum(found.accept, hit))


class SecondBest(Exact):
    """(13) The draft is accepted at temperature 0 when it is among the two best codes."""

    def greedy(self, p, x):
        hit = (p.topk(2).indices == x[..., None]).any(-1).float()
        zero = torch.zeros_like(hit)
        return Test(hit, hit, p, zero, zero)


class NoBound(Lantern):
    """(14) Accepts everything and declares a bound that is no number."""

    def test(self, p, q, x):
        found = super().test(p, q, x)
        entropy = (p * p.log2() / 0.0).sum(-1)  # NaN: the bound of a careless rule
        return replace(found, accept=torch.ones_like(found.accept), bound=0 * entropy)

    def greedy(self, p, x):
        found = super().greedy(p, x)
        nan = torch.full_like(found.bound, torch.nan)
        return replace(found, accept=torch.ones_like(found.accept), bound=nan, moved=nan)


class NoLogit(Eagle):
    """(15) One of the drafter's logits is NaN."""

    def begin(self, *args):
        session = super().begin(*args)
        advance = session.advance

        def broken(*told):
            logits = advance(*told).clone()
            logits[:, 0] = torch.nan
            return logits

        session.advance = broken
        return session
