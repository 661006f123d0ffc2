"""A step as a CUDA graph on a real card: one launch, no synchronisation, codes of compiled steps;
then the cases of captured steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from decoders.execution import execution
from decoders.noise import Noise
from tests.decoders.compositions import EVERY, SPECS, images
from tests.decoders.execution import test_backends as backends
from tests.decoders.execution import test_matrix as matrix

COMPILED, CUDA = ("ar", "lantern_pp"), torch.device("cuda")
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


def standing(name: str, mode: str) -> tuple[Any, Any]:
    """A decoder that has run, and a run of an image that has begun."""
    decoder = backends.built(execution(mode, EVERY, CUDA), SPECS[name], device="cuda")
    images(decoder, ["a b"])
    model = decoder.model
    noise = Noise.for_prompts(4, ["x"], model.target.length).to(model.device)
    state = decoder.begin(model.text.encode(["x"]), noise, *([0] if name != "ar" else []))
    state = decoder.execution.begin(decoder, state)
    torch.cuda.synchronize()
    return decoder, state


@pytest.mark.parametrize("name", COMPILED)
@torch.inference_mode()
def test_a_step_is_one_launch_without_synchronisation(name: str) -> None:
    decoder, state = standing(name, "graph")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with without_waits(), torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            decoder.execution.step(decoder, state)
    counts = {e.key: e.count for e in profile.key_averages()}
    assert counts["cudaGraphLaunch"] == 3
    assert counts.get("cudaLaunchKernel", 0) == 0


@pytest.mark.parametrize("name", SPECS)
@torch.inference_mode()
def test_an_eager_step_does_not_synchronise(name: str) -> None:
    decoder, state = standing(name, "eager")
    with without_waits():
        for _ in range(3):
            decoder.execution.step(decoder, state)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", COMPILED)
def test_codes_of_compiled_steps_are_those_of_eager_ones(name: str, temperature: float) -> None:
    backends.require_eager(
        execution("compile", EVERY, CUDA), SPECS[name], temperature, device="cuda"
    )


@pytest.mark.parametrize("name", matrix.CAPTURED)
def test_codes_of_captured_steps_are_those_of_eager_ones(name: str) -> None:
    matrix.test_codes_are_those_of_eager_steps("captured", name)


# Behind them, as there are many.
from tests.decoders.execution.test_captured_graphs import *  # noqa: E402, F403
