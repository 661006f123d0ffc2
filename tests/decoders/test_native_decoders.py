"""Whole images through the CPU kernel: the codes of PyTorch's operators, code by code."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from bench.runner import set_native
from decoders.api import DecoderError, Generation, ImageModel, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.kernels.cpu.layers import NativeLayers
from decoders.kernels.cpu.stepping import NativeNext
from decoders.models import native
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import EAGLE, EXACT, LOOP, STATIC
from tests.decoders.compositions import SPECS as SPECS_OF_ALL
from tests.decoders.native_cases import needs_kernel, network

EARLY = PartSpec("decoders.drafters.early_exit.EarlyExit", {"layers": 1})
SPECS = {
    **SPECS_OF_ALL,
    "eagle1": DecoderSpec("eagle1", LOOP, EAGLE, STATIC, EXACT),
    "early_exit": DecoderSpec("early_exit", LOOP, EARLY, STATIC, EXACT),
}


def model_of(kernel: bool) -> ImageModel:
    model = random_model(vocab=64, grid=4, width=32)
    if kernel:
        set_native(model)
    return model


def image(model: ImageModel, name: str, temperature: float, batch: int) -> Generation:
    decoder = build_decoder(model, SPECS[name], Sampling(temperature=temperature, cfg=2.0))
    prompts = ["a b", "c d e", "f"][:batch]
    noise = Noise.for_prompts(3, prompts, model.target.length)
    return decoder.generate(model.text.encode(prompts), noise)


@needs_kernel
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_codes_are_those_of_pytorchs_operators(
    name: str, temperature: float, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    run, following = NativeLayers.__call__, NativeNext.__call__

    def counted(self: NativeLayers, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(x.shape[1])
        return run(self, x, *rest)

    def counted_next(self: NativeNext) -> None:
        calls.append(1)
        following(self)

    monkeypatch.setattr(NativeLayers, "__call__", counted)
    monkeypatch.setattr(NativeNext, "__call__", counted_next)
    wanted = image(model_of(False), name, temperature, batch)
    assert not calls
    found = image(model_of(True), name, temperature, batch)
    assert len(calls) > int(found.trace.target_calls.max())  # the prefix, and every step
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.trace.accepted, wanted.trace.accepted)
    assert torch.equal(found.trace.kind, wanted.trace.kind)


@needs_kernel
def test_a_drafter_gets_the_kernel_with_its_target() -> None:
    for kernel in (False, True):
        model = model_of(kernel)
        build_decoder(model, SPECS["eagle2"], Sampling(cfg=2.0))
        net = model.drafters["eagle"]
        assert (net.native is not None) == kernel
        held = net.native
        build_decoder(model, SPECS["lantern_pp"], Sampling(cfg=2.0))
        assert net.native is held  # one packed copy, however many decoders


@needs_kernel
def test_gradients_go_through_pytorchs_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(True)
    build_decoder(model, SPECS["eagle2"], Sampling(cfg=2.0))
    target: Any = model.target
    drafter = model.drafters["eagle"]
    for net in (target, drafter):
        net.requires_grad_(True)
    text, codes = model.text.encode(["a", "b"]), torch.arange(32).view(2, 16)
    drop = torch.zeros(2, dtype=torch.bool)
    states = target(text, codes, drop)
    target.logits(states).logsumexp(-1).mean().backward()
    assert target.output.weight.grad.abs().sum() > 0
    assert target.layers[0].attention.wqkv.weight.grad.abs().sum() > 0
    mask = torch.ones(16, 16, dtype=torch.bool).tril().expand(2, -1, -1)
    drafter(codes, states.detach(), mask).square().mean().backward()
    assert drafter.fc.weight.grad.abs().sum() > 0


def test_a_model_that_it_cannot_run_keeps_pytorchs_operators(caplog) -> None:
    model = random_model(vocab=64, grid=4, width=32)
    target = network(qk_norm=True)
    assert native.reason(target) == "it has no norm of queries and keys"
    with pytest.raises(DecoderError, match=r"no norm of queries and keys; set .*torch"):
        native.make_native(target)
    model = ImageModel(**{**vars(model), "target": target, "drafters": {}})
    with caplog.at_level(logging.WARNING):
        set_native(model)
    assert "norm of queries and keys; PyTorch does" in caplog.text
    assert target.native is None
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
def test_it_says_what_it_does_not_run(net: Any, words: str) -> None:
    found = native.reason(net())
    assert found is not None and words in found


@needs_kernel
def test_a_copy_of_the_weights_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from decoders.kernels.cpu import layers

    net = network()
    assert native.reason(net) is None
    monkeypatch.setattr(layers, "MOST", 1000)
    assert "second copy of the weights" in str(native.reason(net))
