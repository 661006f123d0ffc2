"""The output bound (decoders.md, lemma R) against the enumerated law, and what verdicts say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.judge.gate import check_decoder
from bench.judge.gate.laws import random_pairs
from bench.judge.gate.small import small_model
from decoders.api import Sampling
from decoders.distribution import normalised
from decoders.verify.lantern import Lantern, LanternPP
from metrics.node_law import node_law
from tests.exact.specs import composed, lantern, lantern_pp

VOCAB = 10
MODEL = small_model(VOCAB, 2, 3)
PAIRS = random_pairs(VOCAB, 2, seed=7)
TAU_1 = Sampling(temperature=1.0, cfg=2.0)
PAPERS = {
    "lantern": Lantern(MODEL, k=4, delta=0.3),
    "lantern_pp": LanternPP(MODEL, k=4, lam=4.0),
}


class Corrected:
    """A rule with the correction norm((p - q a)+) of the lemma, the same after every draft."""

    at, bounds_output = None, False

    def __init__(self, rule):
        self.rule = rule

    def test(self, p, q, x):
        found = self.rule.test(p, q, x)
        if q is None:
            left = p.scatter_add(-1, x[..., None], -found.accept[..., None])
        else:
            every = torch.arange(p.shape[-1]).expand(*p.shape[:-1], -1)  # [..., V]
            wide = [t[..., None, :].expand(*p.shape, -1) for t in (p, q)]
            left = p - q * self.rule.test(*wide, every).accept
        return replace(found, residual=normalised(left.clamp_min(0), p))


def by_hand(rule, p, q):
    """sum_x (q(x) a(x) - p(x))+ of one draft."""
    every = torch.arange(len(p))
    accept = rule.test(p.expand(len(p), -1), q.expand(len(p), -1), every).accept
    return float((q * accept - p).clamp_min(0).sum())


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("corrected", [False, True])
def test_one_draft_is_away_from_p_by_the_output_bound_itself(name, corrected):
    """With the lemma's correction, and with the papers', which does no worse."""
    rule = Corrected(PAPERS[name]) if corrected else PAPERS[name]
    for _, p, q in PAIRS:
        law = node_law(rule, p, q, 1)
        assert law.tv == pytest.approx(by_hand(PAPERS[name], p, q), abs=1e-6)
        assert law.limit == pytest.approx(law.tv, abs=1e-6)
        for x in range(VOCAB):  # deterministic: q = 1 at x
            fixed = node_law(rule, p, None, torch.tensor([x]))
            assert fixed.limit == pytest.approx(fixed.tv, abs=1e-6)


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_siblings_stay_within_the_output_bound(name, corrected, count):
    rule = Corrected(PAPERS[name]) if corrected else PAPERS[name]
    for _, p, q in PAIRS:
        for drawn in (q, None):
            law = node_law(rule, p, drawn, count if drawn is not None else q.topk(count).indices)
            assert law.tv <= law.limit + 1e-6
            assert law.limit <= 1 + 1e-6


@pytest.mark.parametrize("name", PAPERS)
def test_two_siblings_by_the_lemma_written_out(name):
    """TV_1 = sum (q a - p)+ + sum_x q(x) (1 - a(x)) TV_2(x)."""
    rule = Corrected(PAPERS[name])
    for _, p, q in PAIRS:
        wanted = by_hand(PAPERS[name], p, q)
        for x in q.nonzero().flatten():
            test = rule.test(p[None], q[None], x[None])
            rest = q.clone()
            rest[x] = 0
            if float(test.accept) < 1 and float(rest.sum()) > 0:
                left = float(q[x]) * (1 - float(test.accept))
                wanted += left * by_hand(PAPERS[name], test.residual[0], rest / rest.sum())
        assert node_law(rule, p, q, 2).limit == pytest.approx(wanted, abs=1e-5)


def test_no_correction_does_better_than_the_lemma_s():
    rule = Lantern(MODEL, k=4, delta=0.3, residual="released")
    laws = [node_law(rule, p, q, 1) for _, p, q in PAIRS]
    assert all(law.tv >= law.limit - 1e-6 for law in laws)
    assert max(law.tv - law.limit for law in laws) > 0.001


def test_the_verdict_on_drawn_drafts_says_that_the_output_bound_holds(few_images):
    """delta bounds TV(p, p_A): the output beyond it breaks no claim."""
    found = check_decoder(composed("chain", lantern()), TAU_1)
    assert (found.verdict, found.text) == ("relaxed", "relaxed")
    assert "is on TV(p, p_A), not on the output, and exceeded" in found.detail
    assert "within sum (q a - p)+, lemma R's output bound, at all" in found.detail
    assert found.detail.startswith("at temperature 1, guidance 2: ")


def test_the_verdict_on_a_released_residual_says_that_the_output_bound_is_exceeded(few_images):
    found = check_decoder(composed("small", lantern_pp(residual="released")), TAU_1)
    assert found.verdict == "broken" and "is exceeded" in found.detail
    assert "norm((p - q a)+)" in found.detail
