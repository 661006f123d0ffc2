"""The enumerated law of a node: by hand, what rules promise of it, and the output bound
(decoders.md, lemma R)."""

from dataclasses import replace

import pytest
import torch

from bench.gate.laws import random_pairs
from bench.gate.reference import reference_rule
from decoders.distribution import normalised
from decoders.models.random_weights import small_model
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from metrics.output_law import output_law

VOCAB = 10
MODEL = small_model(VOCAB, 2, 3)
PAIRS = random_pairs(VOCAB, 2, seed=7)
PAPERS = {
    "lantern": Lantern(MODEL, k=4, delta=0.3),
    "lantern_pp": LanternPP(MODEL, k=4, lam=4.0),
    "cosine": Lantern(MODEL, k=4, delta=0.3, metric="cosine"),
    "random": Lantern(MODEL, k=4, delta=0.3, metric="random", seed=3),
    "jsd": Lantern(MODEL, k=4, delta=0.05, distance="jsd"),
}
EVERY = torch.arange(VOCAB)


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


RULES = PAPERS | {f"{name}, corrected": Corrected(rule) for name, rule in PAPERS.items()}
RULES["exact"] = Exact()


def by_hand(rule, p, q):
    """sum_x (q(x) a(x) - p(x))+ of one draft."""
    accept = rule.test(p.expand(len(p), -1), q.expand(len(p), -1), EVERY).accept
    return float((q * accept - p).clamp_min(0).sum())


def test_a_law_by_hand():
    """One drawn child, two codes, acceptance of the exact rule written out."""
    p, q = torch.tensor([0.7, 0.3]), torch.tensor([0.4, 0.6])
    assert output_law(Exact(), p, q, 1).out.tolist() == pytest.approx([0.7, 0.3])
    book = small_model(2, 2, 0)
    law = output_law(Lantern(book, k=1, delta=0.5), p, q, 1)
    # x = 0: p_A = (1, 0), accepted; x = 1: 0.7 > delta, accepted with 0.3 / 0.6, else code 0.
    assert law.out.tolist() == pytest.approx([0.4 + 0.6 * 0.5, 0.6 * 0.5])
    law = output_law(Lantern(book, k=1, delta=0.5), p, None, torch.tensor([0]))
    assert law.out.tolist() == pytest.approx([1.0, 0.0])  # p_A itself
    assert law.tv == pytest.approx(0.3)


@pytest.mark.parametrize("name", PAPERS)
def test_one_deterministic_child_gives_p_a_itself_which_is_as_defined(name):
    """Accept with p_A(x), else norm(p_A without x): the law is p_A, its TV the mass moved."""
    rule = PAPERS[name]
    reference = reference_rule(rule, MODEL)
    for _, p, _ in PAIRS:
        test = rule.test(p.expand(VOCAB, -1), None, EVERY)
        most = torch.full_like(p, 0.3)
        if name == "lantern_pp":
            most = 3 * p  # p_A(x) <= lambda p(x)
        elif name == "jsd":
            most = torch.full_like(p, 0.1**0.5)  # JSD >= TV^2 / 2
        assert (test.tv_shift <= test.bound + 1e-6).all() and (test.tv_shift <= most + 1e-6).all()
        for x in range(VOCAB):
            law = output_law(rule, p, None, EVERY[[x]])
            assert law.tv == pytest.approx(float(test.tv_shift[x]), abs=1e-6)
            assert law.tv <= law.declared + 1e-5
        if reference is None:
            continue  # any order of the other codes is random
        wanted, _, near_edge = reference(p.double().expand(VOCAB, -1), EVERY)
        assert torch.allclose(test.tv_shift.double()[~near_edge], wanted[~near_edge], atol=1e-6)


def test_a_bound_on_the_divergence_admits_the_longest_prefix_within_it():
    """JSD by its definition, over all codes: within delta, beyond it with one neighbour more."""
    rule, met = PAPERS["jsd"], 0
    for _, p, _ in PAIRS:
        for x in range(VOCAB):
            near = rule.table[x, :4].long()
            sizes = []
            for n in range(5):
                moved = p.double().clone()
                moved[near[:n]] = 0.0
                moved[x] = p.double()[x] + p.double()[near[:n]].sum()
                middle = (p.double() + moved) / 2
                terms = [torch.xlogy(a, a / middle).nansum() for a in (p.double(), moved)]
                sizes.append(float(sum(terms) / 2))
            shift = float(rule.test(p, None, torch.tensor(x)).tv_shift)
            longest = max(n for n in range(5) if sizes[n] <= rule.delta)
            assert shift == pytest.approx(float(p[near[:longest]].sum()), abs=1e-6)
            met += 0 < longest < 4
    assert met > 3


def test_neighbours_by_cosine_and_at_random():
    book = MODEL.codebook.double()
    cosine, drawn = PAPERS["cosine"].table, PAPERS["random"].table
    for x in range(VOCAB):
        gaps = 1 - torch.cosine_similarity(book[x], book, dim=-1)
        gaps[x] = torch.inf
        assert cosine[x].tolist() == gaps.argsort()[:5].tolist()
        assert x not in drawn[x] and len(set(drawn[x].tolist())) == 5
    assert not torch.equal(drawn, Lantern(MODEL, k=4, metric="random", seed=4).table)
    every = Lantern(MODEL, k=VOCAB - 1, metric="random").table
    assert (every.sort(1).values == torch.stack([EVERY[x != EVERY] for x in EVERY])).all()


def test_drawn_children_can_leave_the_bound_far_behind():
    """p_A depends on the draft: p on codes that q never draws, q on their neighbours. Every draft
    borrows its neighbour's mass and is accepted: the law is q."""
    book = small_model(8, 2, 0)
    rule = Lantern(book, k=7, delta=0.25)
    p = torch.tensor([0.25] * 4 + [0.0] * 4)
    law = output_law(rule, p, p.flip(0), 1)
    assert law.tv == pytest.approx(1.0, abs=1e-5)
    assert law.declared == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_nodes_stay_within_the_output_bound_which_one_draft_meets(name):
    """With the lemma's correction, and with the papers', which does no worse. Exact rules have no
    TV, and deterministic children of LANTERN keep the bound that it declares."""
    rule = RULES[name]
    for _, p, q in PAIRS:
        for count in (1, 2, 3):
            for drawn, children in ((q, count), (None, q.topk(count).indices)):
                law = output_law(rule, p, drawn, children)
                assert law.tv <= law.limit + 1e-6 and law.limit <= 1 + 1e-6
                assert count > 1 or law.tv == pytest.approx(law.limit, abs=1e-6)
                assert name != "exact" or law.tv < 1e-5
                assert name != "lantern" or drawn is not None or law.tv <= law.declared + 1e-5
        plain = getattr(rule, "rule", rule)
        assert output_law(rule, p, q, 1).tv == pytest.approx(by_hand(plain, p, q), abs=1e-6)


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
        assert output_law(rule, p, q, 2).limit == pytest.approx(wanted, abs=1e-5)
