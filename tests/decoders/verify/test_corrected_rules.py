"""COOL-SD, GSD, typical acceptance, lenience and SpecDec: node laws by enumeration against their
formulas, their declared bounds, greedy decoding."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bench.gate.laws import random_pairs
from decoders.api import Draft
from decoders.models.random_weights import random_model
from decoders.verify.cool_sd import CoolSD, Lenience
from decoders.verify.exact import Exact
from decoders.verify.gsd import Gsd
from decoders.verify.lantern import Lantern, LanternPP
from decoders.verify.specdec import SpecVerification
from decoders.verify.typical import Typical
from metrics.output_law import Spot
from metrics.output_law import output_law as law_of

V = 5
MODEL = random_model(vocab=V, grid=2, seed=4)
BOOK = torch.tensor([[0.0], [0.2], [0.4], [2.0], [2.1]])
MODEL = replace(MODEL, tokenizer=type(MODEL.tokenizer)(BOOK))
PAIRS = [(p, q) for _, p, q in random_pairs(V, 2, seed=5)]
RULES = {
    "cool_sd": CoolSD(delta=2.0),
    "lenience": Lenience(lenience=0.4),
    "typical": Typical(eps=0.3, alpha=0.5),
    "gsd": Gsd(MODEL, group=4, theta_p=0.3, theta_d=0.5),
    "specdec": SpecVerification(beta=3, tau=1.0),
}


def output_law(rule, p, q, children):
    """Of a node under the root of a draft of one level, where omega is delta."""
    return law_of(rule, p, q, children, spot=Spot(0, 1, 1))


def gsd_by_hand(p, q, x, group, theta_p, theta_d):
    """a(x) as the definition reads."""
    order = sorted(range(len(p)), key=lambda y: (float(p[y]), y))
    rank, half = order.index(x), group // 2
    members = [
        y for y in order[max(0, rank - half) : rank + half + 1]
        if y == x or (abs(float(p[y] - p[x])) < theta_p and abs(float(BOOK[y] - BOOK[x])) < theta_d)
    ]  # fmt: skip
    if float(p[x]) == 0:
        return 0.0
    mass = 1.0 if q is None else float(q[members].sum())
    return min(1.0, float(p[members].sum()) / mass) if mass > 0 else 0.0


def acceptance(name, p, q, x):
    """a(x) by the formula of decoders.md."""
    drawn = 1.0 if q is None else float(q[x])
    if drawn == 0:
        return 0.0
    if name == "gsd":
        return gsd_by_hand(p, q, x, 4, 0.3, 0.5)
    if name == "typical":
        entropy = -sum(float(m) * math.log(float(m)) for m in p if m > 0)
        return float(float(p[x]) > min(0.3, 0.5 * math.exp(-entropy)))
    if name == "specdec":
        above = sum(float(m) > float(p[x]) for m in p)
        return float(above < 3 and float(p[x]) > 0 and math.log(p.max() / p[x]) <= 1.0)
    return min(1.0, {"cool_sd": 2.0, "lenience": 2.5}[name] * float(p[x]) / drawn)


@pytest.mark.parametrize("name", RULES)
def test_a_node_s_law_is_the_formula_s_and_its_tv_the_declared_bound(name):
    """q a + (1 - sum q a) norm((p - q a)+), whose TV is sum (q a - p)+ (decoders.md, lemma R)."""
    moved = 0.0
    for p, q in PAIRS:
        mass = torch.tensor([float(q[x]) * acceptance(name, p, q, x) for x in range(V)]).double()
        left = (p.double() - mass).clamp_min(0)
        wanted = mass + (1 - mass.sum()) * left / left.sum().clamp_min(1e-30)
        law = output_law(RULES[name], p, q, 1)
        torch.testing.assert_close(law.out, wanted, atol=1e-6, rtol=0)
        bound = float((mass - p).clamp_min(0).sum())
        assert law.tv == pytest.approx(bound, abs=1e-6)
        assert law.declared == pytest.approx(bound, abs=1e-6)
        assert law.limit == pytest.approx(bound, abs=1e-6)
        moved = max(moved, bound)
        for x in range(V):
            fixed = output_law(RULES[name], p, None, torch.tensor([x]))
            a = acceptance(name, p, None, x)
            assert fixed.tv == pytest.approx(max(0.0, a - float(p[x])), abs=1e-6)
            assert fixed.declared == pytest.approx(fixed.tv, abs=1e-6)
    assert moved > 0.05


def test_omega_falls_with_the_depth_as_published():
    """decoders.md (e), to three decimals."""
    depth = torch.arange(5)[None]
    draft = Draft(depth, depth, depth, depth[..., None], None, levels=4)
    rule = CoolSD(delta=1.1).at(draft, torch.ones(1))
    assert rule.omega[0, :4, 0].tolist() == pytest.approx([2.358, 1.171, 0.582, 0.289], abs=1e-3)
    p, q = PAIRS[0]
    x = torch.tensor([[0] * 5])
    test = rule.test(p.expand(1, 5, -1), q.expand(1, 5, -1), x)
    wanted = [min(1.0, float(w * p[0] / q[0])) for w in rule.omega[0, :, 0]]
    assert test.accept[0].tolist() == pytest.approx(wanted, abs=1e-6)
    for level, omega in enumerate(rule.omega[0, :4, 0]):
        bound = test.bound[0, level]
        assert float(bound) <= max(0.0, 1 - 1 / float(omega)) + 1e-6


def test_rules_that_relax_nothing_are_exact():
    for p, q in PAIRS:
        for rule in (
            Lantern(MODEL, k=4, delta=0.0),
            LanternPP(MODEL, k=4, lam=1.0),
            Lenience(lenience=1.0),
            CoolSD(delta=0.8),
            Gsd(MODEL, group=1),
            Gsd(MODEL, group=4, theta_d=1e-6),
        ):
            law = output_law(rule, p, q, 2)
            assert law.tv < 1e-5
            assert law.declared == 0.0  # the gate then calls it exact
        for x in range(V):
            one, exact = (r.test(p, q, torch.tensor(x)) for r in (Gsd(MODEL, group=1), Exact()))
            assert float(one.accept) == float(exact.accept)  # the same codes under the same noise


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_greedy_decoding_accepts_the_argmax(rule):
    p = torch.tensor([[0.5, 0.1, 0.1, 0.2, 0.1]]).expand(V, -1)
    test = rule.greedy(p, torch.arange(V))
    assert test.accept[0] == 1
    if isinstance(rule, SpecVerification):
        assert test.accept.tolist() == [1, 0, 0, 1, 0] == (test.strict + test.bound).tolist()
    else:
        assert test.accept.tolist() == [1, 0, 0, 0, 0]
        assert not test.bound.any()


def test_specdec_with_one_likeliest_code_takes_the_first_of_equal_ones():
    p, every = torch.tensor([[0.1, 0.4, 0.4, 0.1]]).expand(4, -1), torch.arange(4)
    for rule, accepted in (
        (SpecVerification(beta=1), [0, 1, 0, 0]),
        (SpecVerification(beta=2, tau=0), [0, 1, 1, 0]),
        (SpecVerification(beta=9, tau=9), [1, 1, 1, 1]),
    ):
        assert rule.greedy(p, every).accept.tolist() == accepted
