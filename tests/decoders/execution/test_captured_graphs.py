"""What captured steps must do on a card: on a real one where there is one, else on a pretended one.
Both refuse to capture a step that waits for the device: an `item`, `nonzero`, mask index or
implicit bool."""

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.cache import KVCache
from decoders.compose import build_decoder
from decoders.execution import cuda_graphs
from decoders.execution.cuda_graphs import Graphed
from decoders.execution.eager import Eager
from decoders.execution.gpu import capturing
from decoders.models.random_weights import random_model
from tests.decoders.compositions import EVERY, images, small_spec
from tests.decoders.execution.test_backends import assert_same
from tests.decoders.execution.test_matrix import ONE, OTHER, Uncompiled, card_or_pretended

THREE, OTHERS = ["a", "b c", "d"], ["e f", "g", "h i j"]


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    with card_or_pretended():
        yield


class OnlyTimed(Graphed):
    """Has a compiler, and calls it for no batch."""

    def _compiles(self, device: torch.device) -> bool:
        return True

    def _compile_pieces(self, loop: Any, state: Any) -> Any:
        raise AssertionError("a batch that is not timed is compiled")


MODES: dict[str, Callable[[], Any]] = {
    "graph": lambda: Uncompiled(EVERY),
    "quality": lambda: OnlyTimed(uncompiled_sizes=(3,)),
    "eager": Eager,
}


def built(mode: str, names: Sequence[str]) -> list[Any]:
    """Decoders of one model under one execution, so that graphs share a pool."""
    how = MODES[mode]()
    model = replace(random_model(vocab=128, grid=3, device="cuda"), execution=how)
    return [build_decoder(model, small_spec(name), Sampling(cfg=2.0)) for name in names]


def image(decoder: Any, prompts: list[str], **given: Any) -> Any:
    """A copy: a later image may be decoded in the same memory."""
    return copy.deepcopy(images(decoder, prompts, **given))


def same(decoders: Sequence[Any], eager: Sequence[Any], batches: Sequence[list[str]]) -> None:
    """Decoders in turns, batch by batch, as each would by itself."""
    every = [[image(decoder, prompts) for decoder in decoders] for prompts in batches]
    for number, alone in enumerate(eager):
        assert_same([row[number] for row in every], [image(alone, each) for each in batches])


@pytest.mark.parametrize("sizes", [(1, 3), (1,)])
def test_batches_in_turns_with_single_images_are_captured_if_they_are_timed(sizes):
    """Rows advance by different lengths; each batch size is a capture of its own."""
    (decoder,), eager = (built(mode, ["lantern_pp"]) for mode in ("graph", "eager"))
    decoder.execution.sizes = sizes
    same([decoder], eager, [THREE, ONE, OTHERS, OTHER])
    assert {*decoder.prepared} == {*sizes}
    assert len(set(image(eager[0], THREE).trace.target_calls.tolist())) > 1


def memory(decoder: Any) -> int:
    """The address of the target's cache that a decoder's steps of one image were captured on."""
    return int(decoder.prepared[1].state.cache.data.untyped_storage().data_ptr())


def test_decoders_in_turns_share_a_pool_a_cache_and_the_captured_prefill():
    """Whichever of them comes first: the cache has room for the largest."""
    names = ["ar", "eagle2", "lantern_pp", "sjd"]
    every = built("graph", names)
    same(every, built("eager", names), [ONE, OTHER])
    assert len({memory(decoder) for decoder in every}) == 1
    assert len(every[0].execution._prefills) == 1


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


# ---- batches that are not timed -----------------------------------------------------------------


def ways(decoder: Any, prompts: list[str]) -> set[str]:
    return {*image(decoder, prompts).trace.path.values()}


@pytest.mark.parametrize("name", ["ar", "lantern_pp", "sjd"])
def test_a_quality_batch_is_captured_once_and_replayed_and_rows_are_refilled(name):
    (decoder,), (eager,) = (built(mode, [name]) for mode in ("quality", "eager"))
    same([decoder], [eager], [THREE, ONE, OTHERS])
    assert {*decoder.prepared} == {3}, "batches of another size run as they are"
    refilled = {"rows": 3, "pairs": 4}
    assert_same(*([image(each, THREE + OTHERS[:2], **refilled)] for each in (decoder, eager)))
    steps = sum(int(image(eager, each).trace.target_calls.max()) for each in (THREE, OTHERS))
    assert decoder.execution.replays > steps
    assert ways(decoder, THREE) == {"captured"} and ways(decoder, ONE) == {"eager"}


@contextmanager
def full(graph: Any, **options: Any) -> Iterator[None]:
    """A capture into a pool of its own runs out of memory."""
    with capturing(graph, **options):
        yield
        if "pool" not in options:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")


def test_a_quality_batch_that_memory_does_not_hold_as_a_graph_is_eager_from_then_on(monkeypatch):
    names, why = ["lantern_pp", "eagle2"], r"3 images cannot be captured: CUDA out of memory\.$"
    (decoder, other), eager = built("quality", names), built("eager", names)
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graphs, "capturing", full)
        with pytest.raises(DecoderError, match=why):
            image(decoder, THREE)
    how = decoder.execution
    assert not how.stop_capturing(other) and how.stop_capturing(decoder)
    same([decoder], eager[:1], [THREE, OTHERS])
    assert ways(decoder, OTHERS) == {"eager"} and not decoder.prepared and how.replays == 0
    assert not how.stop_capturing(decoder), "it was eager, so that its error is its own"
    same([other], eager[1:], [THREE, OTHERS])
    assert ways(other, THREE) == {"captured"} and how._broken == []


def test_a_quality_batch_whose_step_waits_is_decoded_eagerly():
    (decoder,), eager = (built(mode, ["lantern_pp"]) for mode in ("quality", "eager"))
    *others, (phase, last) = decoder.pieces()
    decoder.pieces = lambda: [*others, (phase, Peeks(last).verify_and_commit)]
    with pytest.raises(DecoderError, match="3 images cannot be captured"):
        image(decoder, THREE)
    assert decoder.execution.stop_capturing(decoder)
    same([decoder], eager, [THREE, OTHERS])
