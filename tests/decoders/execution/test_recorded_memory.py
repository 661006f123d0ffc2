"""A recorded state is the only one of its decoder and batch size: the target reads later images
into it, and recording copies no cache."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from decoders.api import Generation, Sampling
from decoders.cache import KVCache
from decoders.compose import build_decoder
from decoders.execution.state import tensors
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import SPECS
from tests.decoders.execution.test_backends import Replayed

FIRST, SECOND = ["a b", "c"], ["d", "e f g"]
CACHES = {"ar": 1, "lantern_pp": 2, "free": 2, "medusa": 1}  # target's, and drafter's


def decoder_of(name: str, recorded: bool = True) -> Any:
    model = random_model(vocab=16, grid=4)
    if recorded:
        model = dataclasses.replace(model, execution=Replayed())
    return build_decoder(model, SPECS[name], Sampling(cfg=2.0))


def decoded(decoder: Any, prompts: list[str]) -> Generation:
    model = decoder.model
    noise = Noise.for_prompts(3, prompts, model.target.length)
    return copy.deepcopy(decoder.generate(model.text.encode(prompts), noise))


def assert_equal(made: Generation, wanted: Generation) -> None:
    """Bit by bit."""
    assert torch.equal(made.codes, wanted.codes)
    for name in ("kind", "step", "depth", "moved", "bound", "accepted", "drafter_calls"):
        assert torch.equal(getattr(made.trace, name), getattr(wanted.trace, name)), name


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[KVCache]:
    """The caches that are made from here on."""
    found: list[KVCache] = []
    begin = KVCache.__init__

    def init(self: KVCache, *given: Any) -> None:
        begin(self, *given)
        found.append(self)

    monkeypatch.setattr(KVCache, "__init__", init)
    return found


@pytest.mark.parametrize("name", CACHES)
def test_later_images_are_prefilled_where_the_first_one_was(name, made):
    decoder = decoder_of(name)
    decoded(decoder, FIRST)
    run = decoder.prepared[2].run
    places = {path: tensor.data_ptr() for path, tensor in tensors(run).items()}
    made.clear()
    found = [decoded(decoder, SECOND), decoded(decoder, FIRST)]
    drafters = 2 * (CACHES[name] - 1)
    assert len(made) == drafters, "no second cache of the target"
    assert decoder.prepared[2].run is run
    assert {path: tensor.data_ptr() for path, tensor in tensors(run).items()} == places
    assert_equal(found[0], decoded(decoder_of(name), SECOND))
    assert_equal(found[1], decoded(decoder_of(name), FIRST))
    assert_equal(found[0], decoded(decoder_of(name, recorded=False), SECOND))
