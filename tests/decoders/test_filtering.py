"""Guidance and top-k filtering never sort a vocabulary; only top-p does."""

from collections import Counter

import pytest
import torch

from decoders.api import Sampling
from decoders.distribution import guided, probabilities
from tests.cuda.pretend import Operators

SORTS = {"sort", "argsort", "msort"}


def operators(sampling: Sampling) -> tuple[Counter[str], torch.Tensor]:
    """The operators that ran, and the laws."""
    logits = torch.randn(4, 3, 500, generator=torch.Generator().manual_seed(0))
    with Operators() as ran:
        p = probabilities(guided(logits, sampling.cfg), sampling)
    return ran.found, p


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_top_k_alone_does_not_sort(temperature):
    found, p = operators(Sampling(temperature=temperature, cfg=3.0, top_k=50))
    assert found["topk"] and not SORTS & found.keys()
    assert ((p > 0).sum(-1) == 50).all()


def test_without_filters_nothing_is_selected():
    found, p = operators(Sampling(cfg=3.0))
    assert not (SORTS | {"topk", "kthvalue"}) & found.keys()
    assert (p > 0).all()


def test_top_p_sorts_once_and_the_counter_sees_it():
    found, _ = operators(Sampling(cfg=3.0, top_k=50, top_p=0.9))
    assert sum(found[name] for name in SORTS) == 2  # which counts each twice
