"""What the CPU kernel runs of a model and its drafters, and what it leaves to PyTorch. That codes
are the same: `tests.decoders.execution.test_matrix` and `tests.golden`."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import ImageModel, Sampling
from decoders.compose import build_decoder
from decoders.execution import with_execution
from decoders.execution.cpu.layers import PackedLayers, reason
from decoders.models.nets.transformer import Transformer
from decoders.models.random_weights import random_model
from tests.decoders.compositions import SPECS, images
from tests.decoders.execution.cpu.cases import needs_kernel, network

SHAPE = {"vocab": 64, "grid": 4, "width": 32}


def decoder_of(model: ImageModel, name: str = "eagle2") -> Any:
    return build_decoder(model, SPECS[name], Sampling(cfg=2.0))


@needs_kernel
def test_the_model_that_was_given_still_runs_without_the_kernel(monkeypatch):
    """And so do its drafters."""
    calls: list[int] = []
    run = PackedLayers.__call__

    def counted(self: PackedLayers, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(x.shape[1])
        return run(self, x, *rest)

    monkeypatch.setattr(PackedLayers, "__call__", counted)
    model = random_model(**SHAPE)
    trace = images(decoder_of(with_execution(model, "compile")), ["a b", "c d e"]).trace
    steps = len(calls)
    assert steps > int(trace.target_calls.max())  # the prefix, and every step
    images(decoder_of(with_execution(model, "eager")), ["a b", "c d e"])
    assert len(calls) == steps


@needs_kernel
def test_nets_in_the_kernel_have_the_names_and_the_memory_of_the_weights():
    model = random_model(**SHAPE)
    fast = with_execution(model, "compile")
    drafter: Any = decoder_of(fast).drafter
    for net, twin in ((model.target, fast.target), (model.drafters["eagle"], drafter.net)):
        weights, others = net.state_dict(), twin.state_dict()
        assert twin is not net and [*others] == [*weights]
        assert all(others[name].data_ptr() == weights[name].data_ptr() for name in weights)


def test_a_model_that_it_cannot_run_keeps_pytorchs_operators(caplog):
    target = network(qk_norm=True)
    assert reason(target) == "it has no norm of queries and keys"
    model = replace(random_model(**SHAPE), target=target, drafters={})
    with caplog.at_level(logging.WARNING):
        model = with_execution(model, "compile")
    assert "norm of queries and keys; PyTorch does" in caplog.text
    assert model.target is target
    assert images(decoder_of(model, "ar"), ["a b"]).codes.shape == (1, 16)


class Own(Transformer):
    """A target with layers of its own."""

    def stack(self, *given: Any) -> torch.Tensor:
        return 2 * super().stack(*given)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: network(dim=8, heads=2), "heads are 16 or 32 or 64 or 128 wide, here 8"),
        (lambda: network(ffn=40), "multiples of 16, here 32 and 40"),
        (lambda: network(dtype=torch.float16), "bfloat16 and float32"),
        (lambda: network(kind=Own), "here Own"),
        (lambda: torch.nn.Linear(2, 2), "here Linear"),
        (lambda: random_model().target.to("meta"), "the model is on meta"),
    ],
)
def test_it_says_what_it_does_not_run(net, words):
    assert words in str(reason(net()))
