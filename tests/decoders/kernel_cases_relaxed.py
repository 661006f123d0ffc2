"""What the fused acceptance kernel must do, on whatever device it runs; see
kernel_cases_attention.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.kernels.relaxed import (
    Bound,
    bound_of,
    fused_test_children,
    judge,
    relaxed_test,
    space,
)
from decoders.kernels.runtime import missing
from decoders.noise import sample
from decoders.verify.children import test_children as judged_by_tensors
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern
from decoders.verify.lantern_pp import LanternPP

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FIELDS = ("accept", "strict", "moved", "bound", "residual")


def model(vocab: int) -> SimpleNamespace:
    random = torch.Generator().manual_seed(1)
    book = torch.randn(vocab, 4, generator=random).to(DEVICE)
    return SimpleNamespace(tokenizer=None, codebook=book, device=DEVICE)


def rules(vocab: int, k: int = 20):
    book = model(vocab)
    return {
        "exact": Exact(),
        "delta": Lantern(book, k=k, delta=0.3),
        "nothing": Lantern(book, k=k, delta=0.0),
        "lambda": LanternPP(book, k=k, lam=4.0),
    }


RULES = tuple(rules(30))


def distributions(*shape: int, top_k: int, seed: int) -> Tensor:
    """Filtered as decoders filter them, so that most codes have probability zero."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*shape, generator=random)
    kth = logits.topk(top_k, -1).values[..., -1:]
    return logits.masked_fill(logits < kth, float("-inf")).softmax(-1).to(DEVICE)


def children(source: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Different codes drawn from `source`, and which of them are there."""
    random = torch.Generator().manual_seed(seed)
    rows = source.flatten(0, -2).cpu()
    codes = torch.multinomial(rows, count, generator=random).view(*source.shape[:-1], count)
    return codes.to(DEVICE), (torch.rand(codes.shape, generator=random) < 0.7).to(DEVICE)


def same(found, right, atol=1e-6):
    for name in FIELDS:
        torch.testing.assert_close(
            getattr(found, name), getattr(right, name), atol=atol, rtol=1e-5, msg=name
        )


def same_samples(found: Tensor, residual: Tensor, u: Tensor) -> None:
    """Equal, but where u falls on the border of two codes to within the sums' rounding."""
    right = sample(residual, u)
    cdf = residual.double().cumsum(-1)
    away = (cdf - u.double()[..., None] * cdf[..., -1:]).abs().amin(-1)
    assert ((found == right) | (away < 1e-6)).all()
    assert (found == right).float().mean() > 0.9


def test_the_kernel_runs_here_for_acceptance():
    assert missing(DEVICE) is None


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
@pytest.mark.parametrize("name", RULES)
def test_children_in_turn_are_judged_as_the_tensor_code_judges_them(name, drawn):
    vocab = 150
    rule = rules(vocab)[name]
    p = distributions(2, 4, vocab, top_k=vocab // 2, seed=2)
    q = distributions(2, 4, vocab, top_k=vocab // 2, seed=3) if drawn else None
    codes, valid = children(p if q is None else q, 4, seed=4)
    bound = bound_of(rule)
    kept = (p.clone(), None if q is None else q.clone())
    found = fused_test_children(p, q, codes, valid, *vars(bound).values())
    same(found, judged_by_tensors(rule, p, q, codes, valid))
    assert torch.equal(p, kept[0]) and (q is None or torch.equal(q, kept[1]))


@pytest.mark.parametrize("name", ["exact", "delta", "lambda"])
def test_vocabularies_and_neighbourhoods_of_several_blocks(name):
    vocab, k = 4200, 1100
    rule = rules(30)[name]
    if name != "exact":  # neighbours at random: nothing here depends on which they are
        shift = 1 + torch.randperm(vocab - 1, generator=torch.Generator().manual_seed(0))[:k]
        table = (torch.arange(vocab)[:, None] + shift) % vocab  # [V, k]
        rule.table, rule.k = table.int().to(DEVICE), k
    p = distributions(2, vocab, top_k=4000, seed=5)
    q = distributions(2, vocab, top_k=4000, seed=6)
    codes, valid = children(q, 2, seed=7)
    u = torch.rand(2, generator=torch.Generator().manual_seed(8)).to(DEVICE)
    found, codes_drawn = judge(p, q, codes, valid, u, bound_of(rule))
    same(found, judged_by_tensors(rule, p, q, codes, valid))
    same_samples(codes_drawn, found.residual, u)


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
@pytest.mark.parametrize("name", RULES)
def test_one_draft_its_test_and_the_code_drawn_after_a_rejection(name, drawn):
    rule = rules(200)[name]
    p = distributions(12, 200, top_k=60, seed=9)
    q = distributions(12, 200, top_k=60, seed=10) if drawn else None
    x = children(p if q is None else q, 1, seed=11)[0][:, 0]
    u = torch.rand(12, generator=torch.Generator().manual_seed(12)).to(DEVICE)
    found, code = relaxed_test(p, q, x, u, bound_of(rule))
    right = rule.test(p, q, x)
    same(found, right)
    same_samples(code, right.residual, u)


def test_exactly_the_longest_prefix_that_fits_is_admitted():
    """The admitted prefix is the longest that fits: not one neighbour more, nor one less."""
    table = torch.tensor([[1, 2, 3], [0, 2, 3], [1, 3, 0], [2, 1, 0]], dtype=torch.int32)
    p = torch.tensor([[0.25, 0.125, 0.125, 0.5]], device=DEVICE)
    x, u = torch.zeros(1, dtype=torch.long, device=DEVICE), torch.zeros(1, device=DEVICE)
    for delta, mass in ((0.125, 0.125), (0.25, 0.25), (0.2, 0.125), (0.1, 0.0), (1.0, 0.75)):
        found, _ = relaxed_test(p, None, x, u, Bound(table.to(DEVICE), 3, "delta", delta))
        assert float(found.moved) == mass
        assert float(found.accept) == 0.25 + mass


def test_where_nothing_is_left_the_distribution_stays():
    """All mass was moved onto x, which is accepted with certainty: no residual, no minus signs."""
    table = torch.tensor([[1, 2], [0, 2], [1, 0]], dtype=torch.int32, device=DEVICE)
    p = torch.tensor([[0.5, 0.5, 0.0]], device=DEVICE)
    codes = torch.tensor([[0, 1]], device=DEVICE)
    bound = Bound(table, 2, "delta", 1.0)
    found = fused_test_children(p, None, codes, codes >= 0, *vars(bound).values())
    assert found.accept.tolist() == [[1.0, 1.0]]
    assert found.residual.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2.0**-24])
def test_a_code_of_probability_zero_is_never_drawn(u):
    p = distributions(8, 1000, top_k=30, seed=13)
    x = p.argmax(-1)
    bound = bound_of(rules(1000)["delta"])
    found, code = relaxed_test(p, None, x, torch.full((8,), u, device=DEVICE), bound)
    assert (found.residual.gather(-1, code[:, None]) > 0).all()


def test_a_work_space_is_filled_and_may_be_used_again():
    vocab = 40
    work = space(6, vocab, 3, True, DEVICE)
    for seed in (20, 30):
        p = distributions(2, 3, vocab, top_k=20, seed=seed)
        q = distributions(2, 3, vocab, top_k=20, seed=seed + 1)
        codes, valid = children(q, 3, seed=seed)
        for buffer in (work.buffers, work.verdicts):
            buffer.fill_(float("nan"))
        rule = rules(vocab)["lambda"]
        found, _ = judge(p, q, codes, valid, None, bound_of(rule), work)
        assert found.residual.data_ptr() == work.buffers.data_ptr()
        same(found, judged_by_tensors(rule, p, q, codes, valid))
    with pytest.raises(DecoderError, match="work space"):
        judge(p[:1], q[:1], codes[:1], valid[:1], None, bound_of(rule), work)


def test_acceptance_that_does_not_fit_is_refused():
    p = distributions(2, 30, top_k=10, seed=40)
    x, u = p.argmax(-1), torch.zeros(2, device=DEVICE)
    with pytest.raises(DecoderError, match="residual=paper"):
        bound_of(Lantern(model(30), k=3, residual="released"))
    with pytest.raises(DecoderError, match=r"torch\.float32, found"):
        relaxed_test(p.double(), None, x, u, bound_of(Exact()))
    with pytest.raises(DecoderError, match="kind is one of"):
        relaxed_test(p, None, x, u, Bound(None, 0, "lantern", 0.0))
    with pytest.raises(DecoderError, match=r"neighbour table must be \[30, >= 5\]"):
        table = torch.zeros(30, 3, dtype=torch.int32, device=DEVICE)
        relaxed_test(p, None, x, u, Bound(table, 5, "delta", 0.1))
    with pytest.raises(DecoderError, match="k = 0 is the exact rule"):
        relaxed_test(p, None, x, u, Bound(None, 0, "delta", 0.1))
