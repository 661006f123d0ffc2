"""Guidance and top-k filtering never sort a vocabulary; only top-p does."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.api import Sampling
from decoders.distribution import guided, probabilities

SORTS = {"aten::sort", "aten::argsort", "aten::msort"}


class Operators(TorchDispatchMode):
    """The names of all operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def operators(sampling: Sampling) -> tuple[list[str], torch.Tensor]:
    logits = torch.randn(4, 3, 500, generator=torch.Generator().manual_seed(0))
    with Operators() as ran:
        p = probabilities(guided(logits, sampling.cfg), sampling)
    return ran.names, p


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_top_k_alone_does_not_sort(temperature):
    names, p = operators(Sampling(temperature=temperature, cfg=3.0, top_k=50))
    assert "aten::topk" in names and not SORTS & set(names)
    assert ((p > 0).sum(-1) == 50).all()


def test_without_filters_nothing_is_selected():
    names, p = operators(Sampling(cfg=3.0))
    assert not (SORTS | {"aten::topk", "aten::kthvalue"}) & set(names)
    assert (p > 0).all()


def test_top_p_sorts_once_and_the_counter_sees_it():
    names, _ = operators(Sampling(cfg=3.0, top_k=50, top_p=0.9))
    assert len([name for name in names if name in SORTS]) == 1
