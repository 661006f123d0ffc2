"""Decoders with one planted error each, to show that the gate catches it.

Loops, verifiers, rules and trees here are the real ones with methods that the contracts name
overridden (`changed`, `judging`, `finds`); everything else stays as it is.
"""

from contextlib import contextmanager
from dataclasses import replace
from types import new_class
from unittest import mock

import torch

from decoders.api import Acceptance
from decoders.distribution import pick, probabilities
from decoders.loops import speculative
from decoders.loops.speculative import Speculative
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, TARGET_SLOT, Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.dynamic import Dynamic
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern
from decoders.verify.token_verifier import TokenVerifier, Verdicts


def changed(base, **own):
    """`base` with methods of one's own, which are given the usual one, and then its arguments."""

    def method(name, change):
        return lambda self, *args, **kwargs: change(
            getattr(super(made, self), name), *args, **kwargs
        )

    methods = {name: method(name, change) for name, change in own.items()}
    methods["__module__"] = base.__module__
    made = new_class(base.__name__, (base,), exec_body=lambda body: body.update(methods))
    return made


def judging(**own):
    """The loop with a verifier around the rule that has these methods."""
    kind = changed(TokenVerifier, **own)

    def make(model, sampling, proposer=None, verifier=None):
        rule = getattr(verifier, "rule", None)  # none: a verifier of whole drafts stays
        return Speculative(model, sampling, proposer, verifier if rule is None else kind(rule))

    return make


def finds(base=Exact, **fields):
    """The rule with what it finds changed: functions of that, p, q and x."""

    def test(usual, p, q, x):
        found = usual(p, q, x)
        return replace(found, **{name: own(found, p, q, x) for name, own in fields.items()})

    return changed(base, test=test)


@contextmanager
def swapped(name, function):
    """The loop's module with another function under `name`."""
    with mock.patch.object(speculative, name, function):
        yield


def settling(probabilities):
    """The loop with another law of the target."""

    def verify_and_commit(usual, *args):
        with swapped("probabilities", probabilities):
            return usual(*args)

    return changed(Speculative, verify_and_commit=verify_and_commit)


def stale_test_children(usual, law, draft, codes, valid, place):
    if law.greedy:
        return usual(law, draft, codes, valid, place)
    rule, p, q = usual.__self__.rule, law.p, draft.q
    columns = {"accept": [], "strict": [], "moved": [], "bound": []}
    for j in range(codes.shape[-1]):
        test = rule.test(p, q, codes[..., j])
        for name, values in columns.items():
            values.append(torch.where(valid[..., j], getattr(test, name), 0.0))
        p = torch.where(valid[..., j, None], test.residual, p)
    return Verdicts(**{n: torch.stack(v, -1) for n, v in columns.items()}, residual=p)


def q_of_the_grandparent(usual, law, draft, *rest):
    index = draft.parents[..., None].expand_as(draft.q)
    return usual(law, replace(draft, q=draft.q.gather(1, index)), *rest)


def one_node_up(usual, law, verdicts, path, *rest):
    above = path.nodes.gather(1, (path.count - 1).clamp_min(0)[:, None])[:, 0]
    return usual(law, verdicts, replace(path, last=above), *rest)


class SharedAcceptNoise(Noise):
    """All siblings are tested with the first one's uniform."""

    def at(self, position, slot, count=1):
        found = super().at(position, slot, count)
        return found[..., :1].expand_as(found) if slot == ACCEPT_SLOT else found


class TwinNoise(Noise):
    """The corrected or bonus code is drawn with the first draft's uniform."""

    def at(self, position, slot, count=1):
        return super().at(position, DRAFT_SLOT if slot == TARGET_SLOT else slot, count)


# (1) q_j still holds the rejected siblings: only p is updated after a rejection.
StaleQ = judging(verdicts=stale_test_children)
# (1) Children are tested against the drafter's distribution of their grandparent.
ParentQ = judging(verdicts=q_of_the_grandparent)
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
# (8) Draft and correction share a uniform.
TwinUniform = judging(
    last_code=lambda usual, law, verdicts, path, noise, place: usual(
        law, verdicts, path, TwinNoise(noise.uniform), place
    )
)
# (3) The residual (p - q)+ as it is: harmless for the last draw, not for the next child.
Unnormalised = finds(
    residual=lambda found, p, q, x: (
        p.scatter(-1, x[..., None], 0.0) if q is None else (p - q).clamp_min(0.0)
    )
)
# (4) The root and its tree one cell too far in the image.
ShiftedGrid = changed(
    Speculative,
    forward=lambda usual, run, draft, mask: (
        draft, *usual(run, replace(draft, depth=draft.depth + 1), mask)[1:]
    ),
)  # fmt: skip


class SelfNeighbour(Lantern):
    """(5) x is its own nearest neighbour, so p(x) counts twice."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        own = torch.arange(len(self.table), dtype=self.table.dtype)[:, None]
        self.table = torch.cat([own, self.table], 1)[:, : self.table.shape[1]]


def half(p):
    return None if p is None else p.bfloat16().float()


def half_law(logits, sampling):
    p = half(probabilities(logits, sampling))
    return p / p.sum(-1, keepdim=True)


# (6) Acceptance and residual from bf16 probabilities.
HalfAcceptance = changed(Exact, test=lambda usual, p, q, x: usual(half(p), half(q), x))
# (6) The loop hands over the target's distribution rounded to bf16, then normalised.
HalfTarget = settling(half_law)
# (7) top-k and top-p for the drafter only.
UnfilteredTarget = settling(
    lambda logits, sampling: probabilities(logits, replace(sampling, top_k=0, top_p=1.0))
)


class StaleCache(Speculative):
    """(9) The accepted path's keys and values stay where the tree wrote them."""

    def verify_and_commit(self, run, *args):
        with mock.patch.object(run.cache, "commit"):
            return super().verify_and_commit(run, *args)


def noisy(usual, session, root_logits, sampling, noise, position):
    u = noise.at(position, ACCEPT_SLOT).expand_as(root_logits)
    shift = 4 * torch.sin(40 * u + torch.arange(root_logits.shape[-1]))
    return usual(session, root_logits + shift, sampling, noise, position)


# (10) Children that depend on the uniform they are tested with.
RandomDynamic = changed(Dynamic, grow=noisy)
# (11) Moves mass, declares none.
HiddenBound = finds(Lantern, bound=lambda found, *_: torch.zeros_like(found.bound))


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
        return Acceptance(hit, hit, p, zero, zero)


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
