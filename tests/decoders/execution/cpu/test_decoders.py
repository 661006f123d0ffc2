"""Whole images through the CPU kernel: the codes of PyTorch's operators, code by code. Those of the
other decoders are in `tests.golden`, under both."""

import logging
from typing import Any

import pytest
import torch

from decoders.api import Generation, ImageModel, Sampling
from decoders.compose import build_decoder
from decoders.execution import with_execution
from decoders.execution.cpu.layers import PackedLayers, reason
from decoders.models.random_weights import random_model
from tests.decoders.compositions import DRAFTER_SPECS, images, require_same
from tests.decoders.compositions import SPECS as SPECS_OF_ALL
from tests.decoders.execution.cpu.cases import model_of, needs_kernel, network

SPECS = {**SPECS_OF_ALL, **DRAFTER_SPECS}


def image(model: ImageModel, name: str, temperature: float, batch: int) -> Generation:
    decoder = build_decoder(model, SPECS[name], Sampling(temperature=temperature, cfg=2.0))
    return images(decoder, ["a b", "c d e", "f"][:batch])


@needs_kernel
@pytest.mark.parametrize(("temperature", "batch"), [(0.0, 3), (1.0, 1), (1.0, 3)])
@pytest.mark.parametrize("name", [*DRAFTER_SPECS, "ar"])
def test_codes_are_those_of_pytorchs_operators(name, temperature, batch, monkeypatch):
    calls: list[int] = []
    run = PackedLayers.__call__

    def counted(self: PackedLayers, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(x.shape[1])
        return run(self, x, *rest)

    monkeypatch.setattr(PackedLayers, "__call__", counted)
    wanted = image(model_of(False), name, temperature, batch)
    assert not calls
    kernel = image(model_of(True), name, temperature, batch)
    assert len(calls) > int(kernel.trace.target_calls.max())  # the prefix, and every step
    require_same(kernel, wanted, "accepted", "kind")


@needs_kernel
def test_gradients_go_through_pytorchs_operators(monkeypatch):
    model = model_of(True)
    build_decoder(model, SPECS["eagle2"], Sampling(cfg=2.0))
    target: Any = model.target
    target.requires_grad_(True)
    text, codes = model.text.encode(["a", "b"]), torch.arange(32).view(2, 16)
    drop = torch.zeros(2, dtype=torch.bool)
    states = target(text, codes, drop)
    target.output(states).logsumexp(-1).mean().backward()
    assert target.output.weight.grad.abs().sum() > 0
    assert target.layers[0].attention.wqkv.weight.grad.abs().sum() > 0


def test_a_model_that_it_cannot_run_keeps_pytorchs_operators(caplog):
    model = random_model(vocab=64, grid=4, width=32)
    target = network(qk_norm=True)
    assert reason(target) == "it has no norm of queries and keys"
    model = ImageModel(**{**vars(model), "target": target, "drafters": {}})
    with caplog.at_level(logging.WARNING):
        model = with_execution(model, "cpu")
    assert "norm of queries and keys; PyTorch does" in caplog.text
    assert target.packed is None
    codes = image(model, "ar", 1.0, 1).codes
    assert codes.shape == (1, 16)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: network(dim=8, heads=2), "heads are 16 or 32 or 64 or 128 wide, here 8"),
        (lambda: network(ffn=40), "multiples of 16, here 32 and 40"),
        (lambda: network(dtype=torch.float16), "bfloat16 and float32"),
        (lambda: torch.nn.Linear(2, 2), "here Linear"),
        (lambda: random_model().target.to("meta"), "the model is on meta"),
    ],
)
def test_it_says_what_it_does_not_run(net, words):
    assert words in str(reason(net()))
