"""What recorded steps must do on a card: on a real one where there is one, else on a pretended
one."""

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.cache import KVCache
from decoders.choose_execution import execution
from decoders.compose import build_decoder
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import SPECS
from tests.decoders.execution.pretended_card import pretended
from tests.decoders.execution.test_backends import assert_same

REAL = torch.cuda.is_available()
ONE, OTHER, THIRD = ["a b"], ["c d e"], ["f"]
THREE, OTHERS = ["a", "b c", "d"], ["e f", "g", "h i j"]


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    with nullcontext() if REAL else pretended() as found:
        yield found


def built(mode: str, names: Sequence[str]) -> list[Any]:
    """Decoders of one model under one execution, so that graphs share a pool."""
    model = replace(random_model(vocab=16, grid=3, device="cuda"), execution=execution(mode))
    sampling = Sampling(cfg=2.0)
    return [build_decoder(model, SPECS[name], sampling) for name in names]


def image(decoder: Any, prompts: list[str], pairs: int = 0) -> Any:
    """A copy: a later image may be decoded in the same memory."""
    model = decoder.model
    noise = Noise.for_prompts(3, prompts, model.target.length)
    return copy.deepcopy(decoder.generate(model.text.encode(prompts), noise, pairs=pairs))


def same(decoders: Sequence[Any], eager: Sequence[Any], images: Sequence[tuple[Any, ...]]) -> None:
    """Decoders in turns, image by image, as each would by itself."""
    found = [[image(decoder, *given) for decoder in decoders] for given in images]
    for number, alone in enumerate(eager):
        assert_same([row[number] for row in found], [image(alone, *given) for given in images])


def test_decoders_in_turns_on_one_pool():
    images = [(ONE,), (OTHER,), (THIRD,)]
    same(built("graph", [*SPECS]), built("eager", [*SPECS]), images)


@pytest.mark.parametrize("name", ["ar", "eagle2", "lantern_pp"])
def test_batches_of_three_in_turns_with_single_images(name):
    """Rows advance by different lengths; each batch size is a recording of its own."""
    (recorded,), (eager,) = (built(mode, [name]) for mode in ("graph", "eager"))
    same([recorded], [eager], [(THREE,), (ONE,), (OTHERS,), (OTHER,)])
    assert len(recorded.prepared) == 2
    if name != "ar":
        assert len(set(image(eager, THREE).trace.target_calls.tolist())) > 1


def caches() -> int:
    gc.collect()
    return sum(isinstance(each, KVCache) for each in gc.get_objects())


def test_images_after_a_release_are_recorded_anew_and_others_are_left_alone():
    names = ["ar", "eagle2"]
    first, second = built("graph", names)
    eager = built("eager", names)
    wanted = [[image(decoder, given) for decoder in eager] for given in (ONE, OTHER)]
    before = caches()
    for _ in range(2):  # the second time, the pool has been without a graph
        assert_same([image(first, ONE), image(second, ONE)], wanted[0])
        held = caches()
        first.prepared.clear()
        assert before < caches() < held  # its memory is free
        assert_same([image(second, OTHER), image(first, OTHER)], wanted[1][::-1])
        first.prepared.clear()
        second.prepared.clear()
        assert caches() == before


class Peeks:
    """A last piece that reads a length back."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece

    def verify_and_commit(self, run: Any, *carry: Any) -> Any:
        out = self.piece(run, *carry)
        assert int(run.length.sum()) >= 0
        return out


def test_a_step_that_waits_cannot_be_recorded_and_the_next_decoder_can():
    bad, good = built("graph", ["lantern_pp", "eagle2"])
    (eager,) = built("eager", ["eagle2"])
    stream = torch.cuda.current_stream()
    *others, (phase, last) = bad.pieces()
    bad.pieces = lambda: [*others, (phase, Peeks(last).verify_and_commit)]
    for _ in range(2):
        with pytest.raises((RuntimeError, DecoderError)):
            image(bad, ONE)
        assert torch.cuda.current_stream() == stream
        same([good], [eager], [(ONE,)])
