"""Distributions over codes: guidance, filters, and the ends of their ranges. What a compiled step
on a GPU writes as loops in place of topk has topk's values, bit by bit."""

import pytest
import torch

from decoders import distribution
from decoders.api import DecoderError, Sampling
from decoders.distribution import guided, kth_by_bits, largest_by_maxima, probabilities


def test_guidance():
    logits = torch.tensor([[[1.0, 2.0]], [[3.0, 1.0]]], dtype=torch.bfloat16)
    result = guided(logits, 3.0)
    assert result.dtype == torch.float32
    assert result.tolist() == [[[3 + 3 * (1 - 3), 1 + 3 * (2 - 1)]]]
    assert torch.equal(guided(logits, 1.0), logits.float())


def test_filters():
    logits = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])
    p = probabilities(logits, Sampling(top_k=2))
    assert (p > 0).tolist() == [True, True, False, False, False]
    assert float(p.sum()) == pytest.approx(1.0)
    full = logits.softmax(-1)
    keep = Sampling(top_p=float(full[:2].sum()) - 1e-3)
    assert (probabilities(logits, keep) > 0).tolist() == [True, True, False, False, False]
    assert (probabilities(logits, Sampling(top_p=1e-6)) > 0).sum() == 1  # the best always stays
    torch.testing.assert_close(probabilities(logits, Sampling(temperature=2.0)),
                               (logits / 2).softmax(-1))  # fmt: skip
    greedy = Sampling(temperature=0.0, top_k=1, top_p=0.1)
    torch.testing.assert_close(probabilities(logits, greedy), full)  # raw


@pytest.mark.parametrize(
    ("setting", "far"),
    [("temperature", 1e-38), ("temperature", 1e-300), ("cfg", 1e38), ("top_p", 1e-46)],
)
def test_what_float32_cannot_hold_is_refused_by_its_name(setting: str, far: float) -> None:
    """And not met as NaN, which would be taken for the checkpoint's."""
    with pytest.raises(DecoderError, match=rf"sampling\.{setting}.*found 1e"):
        Sampling(**{setting: far})


def test_the_ends_of_the_ranges_are_finite() -> None:
    logits = torch.tensor([[[90.0, -80.0, 3.0]], [[-90.0, 60.0, 3.0]]])
    for sampling in (Sampling(1e-6), Sampling(1e30), Sampling(cfg=1e6), Sampling(top_p=1e-6)):
        p = probabilities(guided(logits, sampling.cfg), sampling)
        assert torch.isfinite(p).all() and torch.allclose(p.sum(-1), torch.ones(()))


# ---- the largest, without topk ------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, float("inf"), float("-inf"), 1.5, -1.5]


def rows(seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2, 3, 500, generator=generator) * 10 ** (seed - 3)
    ties = (values * 2).round() / 2  # with many equal ones
    return torch.cat([values, ties, torch.tensor(SPECIAL * 50).expand(2, 3, -1)], 1)  # [2, 9, 500]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 2, 7, 100, 499, 500])
def test_the_kth_largest_is_that_of_topk(k, seed):
    values = rows(seed)
    assert torch.equal(kth_by_bits(values, k)[..., 0], values.topk(k, -1).values[..., -1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_largest_are_those_of_topk_and_the_first_of_equal_ones(k, seed):
    values = rows(seed)[:, :6]
    found, indices = largest_by_maxima(values, k)
    order = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found, order.values[..., :k])
    assert torch.equal(indices, order.indices[..., :k])


def test_distributions_are_the_same(monkeypatch):
    sampling = Sampling(top_k=60, top_p=0.9)
    plain = probabilities(rows(3)[:, :6], sampling)
    monkeypatch.setattr(distribution, "written_as_loops", lambda _: True)
    assert torch.equal(probabilities(rows(3)[:, :6], sampling), plain)
