"""Acceptance rules on their own: neighbours, p_A, residuals, greedy tests and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoders.models.small import random_model
from decoders.verify.entropy import Typical
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP, LanternWithin, latent_space, neighbour_table

VOCAB = 6


def line_model(vocab: int = VOCAB):
    """Codes on a line at 0, 1, 3, 6, 10, ...: neighbours can be read off."""
    model = random_model(vocab=vocab, grid=2)
    book = torch.arange(vocab).cumsum(0).float()[:, None].repeat(1, 3)
    return replace(model, tokenizer=type(model.tokenizer)(book))


MODEL = line_model()
P = torch.tensor([0.10, 0.20, 0.05, 0.30, 0.15, 0.20])
Q = torch.tensor([0.25, 0.05, 0.30, 0.10, 0.20, 0.10])


def at(rule, x, q=None, p=P):
    code = torch.tensor([x])
    return rule.test(p[None], None if q is None else q[None], code)


def test_duplicate_codes_are_still_not_their_own_neighbours():
    table = neighbour_table(torch.zeros(5, 3), 2)
    assert all(x not in row for x, row in enumerate(table.tolist()))


def test_the_metric_chooses_the_space():
    book, raw = torch.eye(3), 2 * torch.eye(3)
    assert latent_space(book, raw, "tokenizer") is book
    assert latent_space(book, raw, "raw") is raw
    assert torch.equal(latent_space(raw, None, "cosine"), book)


def test_the_exact_rule():
    found = at(Exact(), 1, Q)
    assert float(found.accept) == 1.0  # 0.2 / 0.05
    found = at(Exact(), 2, Q)
    assert float(found.accept) == pytest.approx(0.05 / 0.30)
    left = (P - Q).clamp_min(0)
    torch.testing.assert_close(found.residual[0], left / left.sum())
    found = at(Exact(), 3)
    assert float(found.accept) == pytest.approx(0.3)
    assert float(found.residual[0, 3]) == 0
    assert float(found.residual.sum()) == pytest.approx(1.0)


def test_a_draft_the_drafter_never_makes_is_never_accepted():
    q = Q.clone()
    q[2] = 0
    assert float(at(Exact(), 2, q).accept) == 0


def test_p_a_takes_the_longest_prefix_within_the_bound():
    rule = Lantern(MODEL, k=4, delta=0.3)
    found = at(rule, 2)  # neighbours 1 (0.2), 0 (0.1), 3 (0.3), 4
    assert float(found.moved) == pytest.approx(0.3)
    assert float(found.accept) == pytest.approx(0.35)
    assert float(found.strict) == pytest.approx(0.05)
    kept = torch.tensor([0.0, 0.0, 0.0, 0.30, 0.15, 0.20]) / 0.65
    torch.testing.assert_close(found.residual[0], kept)
    # A neighbour that does not fit ends the prefix, though a later one would fit.
    found = at(Lantern(MODEL, k=4, delta=0.15), 2)
    assert float(found.moved) == 0
    assert float(found.accept) == pytest.approx(0.05)
    # k ends it too.
    assert float(at(Lantern(MODEL, k=1, delta=0.9), 2).moved) == pytest.approx(0.2)


def test_the_released_corrections():
    """Dynamic: p loses x and all k + 1 neighbours; static: q loses them instead, p keeps them."""
    rule = Lantern(MODEL, k=2, delta=0.25, residual="released")
    found = at(rule, 2)  # row 1, 0, 3: neighbour 1 fits
    left = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.15, 0.20])
    torch.testing.assert_close(found.residual[0], left / left.sum())
    found = at(rule, 2, Q)
    kept = Q * torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    left = (P - kept).clamp_min(0)
    torch.testing.assert_close(found.residual[0], left / left.sum())
    # Nothing admitted: the exact rule's residual.
    found = at(Lantern(MODEL, k=2, delta=0.05, residual="released"), 2)
    torch.testing.assert_close(found.residual, at(Exact(), 2).residual)
    # Nothing left: uniform.
    p = torch.tensor([0.5, 0.2, 0.1, 0.2, 0.0, 0.0])
    found = at(Lantern(MODEL, k=4, delta=1.0, residual="released"), 2, p=p)
    torch.testing.assert_close(found.residual[0], torch.full((VOCAB,), 1 / VOCAB))


def test_greedy_accepts_where_p_a_peaks():
    """k = 2, delta = 0.26: code 4 admits nothing, as its nearest, 3, has 0.30; the peak is 0.30."""
    rule = Lantern(MODEL, k=2, delta=0.26)
    every = torch.arange(VOCAB)
    found = rule.greedy(P.expand(VOCAB, -1), every)
    raised = (P + found.moved).tolist()
    assert raised == pytest.approx([0.35, 0.35, 0.25, 0.50, 0.15, 0.35])
    assert found.accept.tolist() == [float(r >= 0.3) for r in raised]
    assert (found.moved <= found.bound).all()
    strict = [float(Exact().greedy(P[None], torch.tensor([x])).accept) for x in range(VOCAB)]
    assert strict == [0, 0, 0, 1, 0, 0]


def test_greedy_takes_the_lowest_index_on_ties():
    tied = torch.tensor([[0.4, 0.4, 0.2]])
    assert [float(Exact().greedy(tied, torch.tensor([x])).accept) for x in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    "rule",
    [Exact(), Lantern(MODEL, k=3), LanternPP(MODEL, k=3), LanternWithin(MODEL, k=3), Typical()],
    ids=str,
)
def test_at_temperature_zero_the_children_of_a_node_share_its_law(rule):
    g = torch.Generator().manual_seed(0)
    p = torch.randn(2, 5, VOCAB, generator=g).softmax(-1)
    p[0, 0] = 1 / VOCAB  # ties
    x = torch.randint(VOCAB, (2, 5, 4), generator=g)
    found = rule.greedy(p[:, :, None], x)
    for child in range(4):
        alone = rule.greedy(p, x[..., child])
        for name in ("accept", "strict", "moved", "bound"):
            assert torch.equal(getattr(found, name)[..., child], getattr(alone, name)), name


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_leading_dimensions_are_arbitrary(shape):
    g = torch.Generator().manual_seed(0)
    p = torch.randn(*shape, VOCAB, generator=g).softmax(-1)
    q = torch.randn(*shape, VOCAB, generator=g).softmax(-1)
    x = torch.randint(VOCAB, shape, generator=g)
    for rule in (Exact(), Lantern(MODEL, k=3), LanternPP(MODEL, k=3)):
        for drafter in (None, q):
            found = rule.test(p, drafter, x)
            assert found.accept.shape == found.moved.shape == found.bound.shape == shape
            assert found.residual.shape == p.shape
            assert ((found.accept >= 0) & (found.accept <= 1)).all()
            assert found.residual.dtype == torch.float32
            torch.testing.assert_close(found.residual.sum(-1), torch.ones(shape))
            assert (found.strict <= found.accept + 1e-7).all()


def test_rules_name_themselves():
    assert str(Exact()) == "exact"
    assert str(Lantern(MODEL, k=3, delta=0.2)) == "lantern(k=3, delta=0.2, residual=paper)"
    assert "lambda=2" in str(LanternPP(MODEL, k=3))
