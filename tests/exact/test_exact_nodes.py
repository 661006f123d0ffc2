"""The enumerated law of a node: by hand, and what rules promise of it."""

from __future__ import annotations

import pytest
import torch

from bench.judge.gate.laws import random_pairs
from bench.judge.gate.reference import ReferenceRule
from bench.judge.gate.small import small_model
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from metrics.node_law import node_law, ordered_draws

VOCAB = 16
MODEL = small_model(VOCAB, 2, 3)
PAIRS = random_pairs(VOCAB, 4, seed=0)
RELAXED = {
    "lantern": lambda residual="paper": Lantern(MODEL, k=5, delta=0.2, residual=residual),
    "lantern_pp": lambda residual="paper": LanternPP(MODEL, k=5, lam=3.0, residual=residual),
}


def test_ordered_draws_are_all_of_them_and_add_up_to_one():
    q = torch.tensor([0.5, 0.3, 0.2, 0.0])
    codes, weight = ordered_draws(q, 2)
    found = {tuple(c): w for c, w in zip(codes.tolist(), weight.tolist(), strict=True)}
    assert len(found) == 6
    assert found[0, 1] == pytest.approx(0.5 * 0.3 / 0.5)
    assert found[2, 0] == pytest.approx(0.2 * 0.5 / 0.8)
    assert sum(found.values()) == pytest.approx(1.0)
    codes, weight = ordered_draws(q, 9)  # the support ends first
    assert codes.shape == (6, 3)
    assert float(weight.sum()) == pytest.approx(1.0)


def test_a_law_by_hand():
    """One drawn child, two codes, acceptance of the exact rule written out."""
    p, q = torch.tensor([0.7, 0.3]), torch.tensor([0.4, 0.6])
    assert node_law(Exact(), p, q, 1).out.tolist() == pytest.approx([0.7, 0.3])
    book = small_model(2, 2, 0)
    law = node_law(Lantern(book, k=1, delta=0.5), p, q, 1)
    # x = 0: p_A = (1, 0), accepted; x = 1: 0.7 > delta, accepted with 0.3 / 0.6, else code 0.
    assert law.out.tolist() == pytest.approx([0.4 + 0.6 * 0.5, 0.6 * 0.5])
    law = node_law(Lantern(book, k=1, delta=0.5), p, None, torch.tensor([0]))
    assert law.out.tolist() == pytest.approx([1.0, 0.0])  # p_A itself
    assert law.tv == pytest.approx(0.3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_exact_rules_have_no_tv_at_any_node(count):
    for _, p, q in PAIRS:
        assert node_law(Exact(), p, q, count).tv < 1e-5
        assert node_law(Exact(), p, None, q.topk(count).indices).tv < 1e-5


@pytest.mark.parametrize("name", RELAXED)
def test_one_deterministic_child_gives_p_a_itself(name):
    """Accept with p_A(x), else norm(p_A without x): the law is p_A, its TV the mass moved."""
    rule = RELAXED[name]()
    for _, p, _ in PAIRS:
        for x in range(VOCAB):
            code = torch.tensor([x])
            law = node_law(rule, p, None, code)
            moved = float(rule.test(p[None], None, code).moved)
            assert law.tv == pytest.approx(moved, abs=1e-6)
            assert law.tv <= law.declared + 1e-5


@pytest.mark.parametrize("name", RELAXED)
def test_mass_moved_is_within_the_bound_and_as_defined(name):
    rule = RELAXED[name]()
    reference = ReferenceRule.of(rule, MODEL)
    every = torch.arange(VOCAB)
    for _, p, _ in PAIRS:
        test = rule.test(p.expand(VOCAB, -1), None, every)
        assert (test.moved <= test.bound + 1e-6).all()
        if name == "lantern":
            assert (test.moved <= 0.2 + 1e-6).all()
        else:
            assert (test.moved <= 2 * p + 1e-6).all()  # p_A(x) <= lambda p(x)
        for x in range(VOCAB):
            wanted = reference.at(p.double().numpy(), x)
            if not wanted.near_edge:
                assert float(test.moved[x]) == pytest.approx(wanted.moved, abs=1e-6)


def test_several_deterministic_children_keep_the_composed_bound():
    rule = RELAXED["lantern"]()
    for _, p, q in PAIRS:
        for count in (2, 5, 8):
            law = node_law(rule, p, None, q.topk(count).indices)
            assert law.tv <= law.declared + 1e-5
            assert law.declared == pytest.approx(1 - 0.8**count, abs=1e-5)


def test_drawn_children_can_leave_the_bound_far_behind():
    """p_A depends on the draft: p on codes that q never draws, q on their neighbours. Every draft
    borrows its neighbour's mass and is accepted: the law is q."""
    book = small_model(8, 2, 0)
    rule = Lantern(book, k=7, delta=0.25)
    p = torch.tensor([0.25] * 4 + [0.0] * 4)
    law = node_law(rule, p, p.flip(0), 1)
    assert law.tv == pytest.approx(1.0, abs=1e-5)
    assert law.declared == pytest.approx(0.25, abs=1e-5)


def test_the_released_dynamic_residual_does_not_honour_the_bound():
    """All k + 1 neighbours lose their mass as soon as one is admitted, so the law is about equally
    far from p whatever delta or lambda (METHODS 4, point 1: 0.402 for three settings alike)."""
    wide = small_model(64, 2, 4)
    flat = torch.full((64,), 1 / 64)
    rules = [
        Lantern(wide, k=25, delta=0.05, residual="released"),
        Lantern(wide, k=25, delta=0.2, residual="released"),
        LanternPP(wide, k=25, lam=2.0, residual="released"),
    ]
    laws = [node_law(rule, flat, None, torch.tensor([3])) for rule in rules]
    for law, bound in zip(laws, (0.05, 0.2, 1 / 64), strict=True):
        assert law.declared == pytest.approx(bound, abs=1e-5)
        assert law.tv == pytest.approx(0.41, abs=0.02)
    for rule, bound in zip(rules, (0.05, 0.2, 1 / 64), strict=True):
        rule.residual = "paper"
        assert node_law(rule, flat, None, torch.tensor([3])).tv <= bound + 1e-6


def test_the_released_static_residual_moves_the_law():
    """It zeroes the drafter's q on the neighbours (METHODS 4, point 2): even where the rule may
    move next to nothing the law is not p."""
    tvs = []
    for _, p, q in random_pairs(VOCAB, 8, seed=9):
        rule = LanternPP(MODEL, k=10, lam=2.0, residual="released")
        tvs.append(node_law(rule, p, q, 1).tv)
    assert max(tvs) > 0.09
