"""What recorded steps must do on a card: on a real one where there is one, else on a pretended one.
Both refuse to record a step that waits for the device: an `item`, `nonzero`, mask index or implicit
bool."""

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
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution import execution
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import (
    CHAIN,
    DYNAMIC,
    EAGLE,
    EXACT,
    LOOP,
    OWN,
    SPECS,
    STATIC,
    with_targets,
)
from tests.decoders.execution.pretended_card import pretended
from tests.decoders.execution.test_backends import assert_same


def of(path: str, **options: Any) -> PartSpec:
    return PartSpec(f"decoders.{path}", options)


LANTERN = of("verify.lantern.Lantern", k=3, delta=0.3)
RELEASED = of("verify.lantern.LanternPP", k=3, lam=3.0, residual="released")
# Of every kind of loop, drafter, tree, proposer and verifier.
RECORDED = SPECS | OWN | {
    "lantern": DecoderSpec("lantern", LOOP, EAGLE, CHAIN, LANTERN),
    "released": DecoderSpec("released", LOOP, EAGLE, STATIC, RELEASED),
    "released, deterministic": DecoderSpec("released", LOOP, EAGLE, DYNAMIC, RELEASED),
    "sjd": DecoderSpec("sjd", LOOP, None, None, EXACT, of("propose.jacobi.Jacobi", window=6)),
    "pac": DecoderSpec(
        "pac", LOOP, None, None, EXACT, of("propose.pac.Pac", window=8, candidates=2)
    ),
    "block": DecoderSpec("block", LOOP, EAGLE, CHAIN, of("verify.block.Block")),
    "traversal": DecoderSpec("traversal", LOOP, EAGLE, STATIC, of("verify.traversal.Traversal")),
    "zipar": DecoderSpec("zipar", of("loops.zipar.ZipAR", window=2)),
    "coral": DecoderSpec("coral", of("loops.grouped.Grouped", target="coral")),
}  # fmt: skip
PLAIN = Sampling(cfg=2.0)
PAIRS = 6  # verified pairs recorded of an image
REAL = torch.cuda.is_available()
ONE, OTHER, THIRD = ["a b"], ["c d e"], ["f"]
THREE, OTHERS = ["a", "b c", "d"], ["e f", "g", "h i j"]


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    with nullcontext() if REAL else pretended() as found:
        yield found


def built(mode: str, names: Sequence[str], sampling: Sampling = PLAIN) -> list[Any]:
    """Decoders of one model under one execution, so that graphs share a pool. CORAL decodes an
    image of nine codes in fewer steps than a recording begins with."""
    grid = 4 if "coral" in names else 3
    model = with_targets(random_model(vocab=16, grid=grid, device="cuda"))
    model = replace(model, execution=execution(mode))
    return [build_decoder(model, RECORDED[name], sampling) for name in names]


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


@pytest.mark.parametrize(
    ("name", "temperature"), [(name, float(i % 2)) for i, name in enumerate(RECORDED)]
)
def test_a_recorded_step_goes_on_from_its_own_state(name, temperature):
    """Every image after the first is decoded in the state of the first, without a new recording."""
    filtered = Sampling(temperature, cfg=2.0, top_k=12, top_p=0.9)
    (recorded,), (eager,) = (built(mode, [name], filtered) for mode in ("graph", "eager"))
    found, wanted = (
        [image(decoder, prompts, PAIRS) for prompts in (ONE, OTHER)]
        for decoder in (recorded, eager)
    )
    assert_same(found, wanted)
    steps = sum(int(one.trace.target_calls.max()) for one in found)
    assert recorded.execution.replays == steps and len(recorded.prepared) == 1


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
