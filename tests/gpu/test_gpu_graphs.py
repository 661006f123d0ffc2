"""A step as a CUDA graph: the codes of an eager one, one launch, no synchronisation."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from decoders.api import Sampling
from decoders.compose import build_decoder
from decoders.execution import execution
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.execution.test_backends import PROMPTS, SPECS, assert_same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@contextmanager
def without_waits() -> Iterator[None]:
    """What waits for the device raises RuntimeError inside."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def made(name: str, mode: str, temperature: float) -> tuple[Any, list[Any]]:
    model = random_model(vocab=16, grid=4, device="cuda")
    model = dataclasses.replace(model, execution=execution(mode))
    decoder = build_decoder(model, SPECS[name], Sampling(temperature=temperature, cfg=2.0))
    out = []
    for prompts in PROMPTS:
        noise = Noise.for_prompts(3, prompts, model.target.length)
        out.append(decoder.generate(model.text.encode(prompts), noise))
    return decoder, out


@pytest.mark.parametrize("mode", ["graph", "compile"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_codes_are_those_of_the_eager_step(name: str, temperature: float, mode: str) -> None:
    assert_same(made(name, mode, temperature)[1], made(name, "eager", temperature)[1])


def standing(name: str, mode: str) -> tuple[Any, Any]:
    """A decoder that has run, and a run of an image that has begun."""
    decoder, _ = made(name, mode, 1.0)
    model = decoder.model
    noise = Noise.for_prompts(4, ["x"], model.target.length).to(model.device)
    with torch.inference_mode():
        run = decoder.begin(model.text.encode(["x"]), noise, *([0] if name != "ar" else []))
        run = decoder.execution.begin(decoder, run)
    torch.cuda.synchronize()
    return decoder, run


@pytest.mark.parametrize("name", SPECS)
@torch.inference_mode()
def test_a_step_is_one_launch_without_synchronisation(name: str) -> None:
    decoder, run = standing(name, "graph")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with without_waits(), torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            decoder.execution.step(decoder, run)
    counts = {e.key: e.count for e in profile.key_averages()}
    assert counts["cudaGraphLaunch"] == 3
    assert counts.get("cudaLaunchKernel", 0) == 0


@pytest.mark.parametrize("name", SPECS)
@torch.inference_mode()
def test_an_eager_step_does_not_synchronise(name: str) -> None:
    decoder, run = standing(name, "eager")
    with without_waits():
        for _ in range(3):
            decoder.execution.step(decoder, run)
