"""What a compiled step on a GPU writes as loops in place of topk has topk's values, bit by bit."""

import pytest
import torch

from decoders import distribution
from decoders.api import Sampling
from decoders.distribution import kth_by_bits, largest_by_maxima, probabilities

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
