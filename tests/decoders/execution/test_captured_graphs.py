"""What captured steps must do on a card: on a real one where there is one, else on a pretended one.
Both refuse to capture a step that waits for the device: an `item`, `nonzero`, mask index or
implicit bool."""

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
from decoders.compose import DecoderSpec, build_decoder
from decoders.execution.cuda_graphs import Graphed
from decoders.execution.eager import Eager
from decoders.models.random_weights import random_model
from tests.decoders.compositions import (
    CHAIN,
    DRAFTER_SPECS,
    DYNAMIC,
    EAGLE,
    EVERY,
    EXACT,
    LOOP,
    SPECS,
    STATIC,
    images,
    part,
    with_targets,
)
from tests.decoders.execution.pretended_card import pretended
from tests.decoders.execution.test_backends import PAIRS, assert_same

LANTERN = part("verify.lantern.Lantern", k=3, delta=0.3)
RELEASED = part("verify.lantern.LanternPP", k=3, lam=3.0, residual="released")
BLOCK, TRAVERSAL = part("verify.block.Block"), part("verify.traversal.Traversal")
JACOBI = part("propose.jacobi.Jacobi", window=6)
PAC = part("propose.pac.Pac", window=8, candidates=2)
# Of every kind of loop, drafter, tree, proposer and verifier.
CAPTURED = SPECS | DRAFTER_SPECS | {
    "lantern": DecoderSpec("lantern", LOOP, EAGLE, CHAIN, LANTERN),
    "released": DecoderSpec("released", LOOP, EAGLE, STATIC, RELEASED),
    "released, deterministic": DecoderSpec("released", LOOP, EAGLE, DYNAMIC, RELEASED),
    "sjd": DecoderSpec("sjd", LOOP, acceptance=EXACT, proposer=JACOBI),
    "pac": DecoderSpec("pac", LOOP, acceptance=EXACT, proposer=PAC),
    "block": DecoderSpec("block", LOOP, EAGLE, CHAIN, BLOCK),
    "traversal": DecoderSpec("traversal", LOOP, EAGLE, STATIC, TRAVERSAL),
    "zipar": DecoderSpec("zipar", part("loops.zipar.ZipAR", window=2)),
    "pjd": DecoderSpec("pjd", part("loops.pjd.Pjd", window=3, threshold=1)),
    "coral": DecoderSpec("coral", part("loops.grouped.Grouped", target="coral")),
    "flash": DecoderSpec("flash", part("loops.flash.Flash")),
}  # fmt: skip
REAL = torch.cuda.is_available()
ONE, OTHER = ["a b"], ["c d e"]
THREE, OTHERS = ["a", "b c", "d"], ["e f", "g", "h i j"]


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    with nullcontext() if REAL else pretended() as device:
        yield device


class Uncompiled(Graphed):
    """On a real card a compiler takes longer than all these images."""

    def _compiles(self, device: torch.device) -> bool:
        return False


def built(mode: str, names: Sequence[str], sampling: Sampling | None = None) -> list[Any]:
    """Decoders of one model under one execution, so that graphs share a pool. COrAL decodes nine
    codes in as few steps as a capture takes."""
    model, sampling = random_model(vocab=16, grid=3, device="cuda"), sampling or Sampling(cfg=2.0)
    model = replace(
        with_targets(model) if {"coral", "flash"} & {*names} else model,
        execution=Uncompiled(EVERY) if mode == "graph" else Eager(),
    )
    return [build_decoder(model, CAPTURED[name], sampling) for name in names]


def image(decoder: Any, prompts: list[str], **given: Any) -> Any:
    """A copy: a later image may be decoded in the same memory."""
    return copy.deepcopy(images(decoder, prompts, **given))


def same(decoders: Sequence[Any], eager: Sequence[Any], batches: Sequence[list[str]]) -> None:
    """Decoders in turns, batch by batch, as each would by itself."""
    every = [[image(decoder, prompts) for decoder in decoders] for prompts in batches]
    for number, alone in enumerate(eager):
        assert_same([row[number] for row in every], [image(alone, each) for each in batches])


@pytest.mark.parametrize(
    ("name", "temperature"), [(name, float(i % 2)) for i, name in enumerate(CAPTURED)]
)
def test_a_captured_step_goes_on_from_its_own_state(name, temperature):
    """Every image after the first is decoded in the state of the first, without a new capture."""
    filtered = Sampling(temperature, cfg=2.0, top_k=12, top_p=0.9)
    (captured,), (eager,) = (built(mode, [name], filtered) for mode in ("graph", "eager"))
    replayed, wanted = (
        [image(decoder, prompts, pairs=PAIRS) for prompts in (ONE, OTHER)]
        for decoder in (captured, eager)
    )
    assert_same(replayed, wanted)
    steps = sum(int(one.trace.target_calls.max()) for one in replayed)
    assert captured.execution.replays == steps and len(captured.prepared) == 1


def test_decoders_in_turns_on_one_pool():
    same(built("graph", [*SPECS]), built("eager", [*SPECS]), [ONE, OTHER])


@pytest.mark.parametrize("name", ["eagle2", "lantern_pp"])
def test_batches_of_three_in_turns_with_single_images(name):
    """Rows advance by different lengths; each batch size is a capture of its own."""
    captured, eager = (built(mode, [name]) for mode in ("graph", "eager"))
    same(captured, eager, [THREE, ONE, OTHERS, OTHER])
    assert len(captured[0].prepared) == 2
    assert len(set(image(eager[0], THREE).trace.target_calls.tolist())) > 1


def memory(decoder: Any) -> int:
    """The address of the target's cache that a decoder's steps of one image were captured on."""
    return int(decoder.prepared[1].state.cache.data.untyped_storage().data_ptr())


def test_loops_share_a_cache_and_the_captured_prefill():
    """Whichever of them comes first: the cache has room for the largest."""
    every = built("graph", ["ar", "lantern_pp", "sjd"])
    same(every, built("eager", ["ar", "lantern_pp", "sjd"]), [ONE, OTHER])
    assert len({memory(decoder) for decoder in every}) == 1
    assert len(every[0].execution._prefills) == 1


def test_batches_that_are_not_timed_are_not_captured():
    (decoder,), eager = built("graph", ["lantern_pp"]), built("eager", ["lantern_pp"])
    decoder.execution.sizes = (1,)
    same([decoder], eager, [THREE, ONE, OTHERS])
    assert [*decoder.prepared] == [1]
    assert image(decoder, THREE).trace.path["forward"] == "eager"


def caches() -> int:
    gc.collect()
    return sum(isinstance(each, KVCache) for each in gc.get_objects())


def test_images_after_a_release_are_captured_anew_and_others_are_left_alone():
    (first, second), eager = (built(mode, ["ar", "eagle2"]) for mode in ("graph", "eager"))
    wanted = [[image(decoder, given) for decoder in eager] for given in (ONE, OTHER)]
    before = caches()
    for _ in range(2):  # the second time, the pool has been without a graph
        assert_same([image(first, ONE), image(second, ONE)], wanted[0])
        held = caches()
        first.prepared.clear()
        assert before < caches() < held  # what it does not share is free
        assert_same([image(second, OTHER), image(first, OTHER)], wanted[1][::-1])
        first.prepared.clear()
        second.prepared.clear()
        assert caches() == before + 2, "that of the prefill, and one that the next loop may share"


class Peeks:
    """A last piece that reads a length back."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece

    def verify_and_commit(self, state: Any, *carry: Any) -> Any:
        out = self.piece(state, *carry)
        assert int(state.length.sum()) >= 0
        return out


def test_a_step_that_waits_cannot_be_captured_and_the_next_decoder_can():
    bad, good = built("graph", ["lantern_pp", "eagle2"])
    eager = built("eager", ["eagle2"])
    stream = torch.cuda.current_stream()
    *others, (phase, last) = bad.pieces()
    bad.pieces = lambda: [*others, (phase, Peeks(last).verify_and_commit)]
    for _ in range(2):
        with pytest.raises((RuntimeError, DecoderError)):
            image(bad, ONE)
        assert torch.cuda.current_stream() == stream
        same([good], eager, [ONE])
    assert len(good.execution._broken) == 2, "pools that were left capturing are kept alive"
