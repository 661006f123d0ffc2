"""What recorded steps and launches must do, on whatever card: a real one (tests/gpu), a pretended
one with Triton's interpreter (test_kernels.py runs this file with the variable set)."""

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
from decoders.compose import build_decoder
from decoders.executed import execution
from decoders.kernels.candidates import AttentionShape, Products, Sdpa, implementation
from decoders.kernels.choose import choose, inputs
from decoders.kernels.sampling import sampled
from decoders.kernels.selected import Kernels
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import SPECS
from tests.decoders.execution.pretended_card import pretended
from tests.decoders.execution.test_backends import assert_same

REAL = torch.cuda.is_available()
CUDA = torch.device("cuda")
LAUNCHES = 100_000 if REAL else 8  # the interpreter cannot race
SPECULATIVE = ["eagle2", "lantern_pp"] if REAL else ["eagle2"]  # the interpreter is slow
ONE, OTHER, THIRD = ["a b"], ["c d e"], ["f"]
THREE, OTHERS = ["a", "b c", "d"], ["e f", "g", "h i j"]


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    with nullcontext() if REAL else pretended() as found:
        yield found


def built(
    mode: str, names: Sequence[str], attention: str, grid: int = 3, temperature: float = 1.0
) -> list[Any]:
    """Decoders of one model under one execution, so that graphs share a pool."""
    model = random_model(vocab=16, grid=grid, device="cuda")
    model.target.kernels = Kernels(attention)  # type: ignore[attr-defined]
    model = replace(model, execution=execution(mode))
    sampling = Sampling(temperature=temperature, cfg=2.0)
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


def test_decoders_in_turns_on_one_pool_with_the_fused_attention():
    names = list(SPECS) if REAL else ["eagle2", "ar"]
    images = [(ONE,), (OTHER,), (THIRD,)] if REAL else [(ONE,), (OTHER,)]
    same(built("graph", names, "triton"), built("eager", names, "triton"), images)


@pytest.mark.parametrize("name", ["ar", *SPECULATIVE])
def test_batches_of_three_in_turns_with_single_images(name):
    """Rows advance by different lengths; each batch size is a recording of its own."""
    (recorded,), (eager,) = (built(mode, [name], "products") for mode in ("graph", "eager"))
    same([recorded], [eager], [(THREE,), (ONE,), (OTHERS,), (OTHER,)])
    assert len(recorded.prepared) == 2
    if name != "ar":
        assert len(set(image(eager, THREE).trace.target_calls.tolist())) > 1


def caches() -> int:
    gc.collect()
    return sum(isinstance(each, KVCache) for each in gc.get_objects())


def test_images_after_a_release_are_recorded_anew_and_others_are_left_alone():
    names = ["ar", "eagle2"]
    first, second = built("graph", names, "products")
    eager = built("eager", names, "products")
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


class Waits(Products):
    """Reads a number back in every layer."""

    name = "waits"

    def attend(self, qkv: Any, *others: Any) -> Any:
        float(qkv.sum())
        return super().attend(qkv, *others)


class WaitsLate(Products):
    """Waits only where it is recorded, so that no trial before that sees it."""

    name = "waits_late"

    def attend(self, *given: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return super().attend(*given)


class FailsLate(Products):
    """Fails where it is recorded, by no fault of the card."""

    name = "fails_late"

    def attend(self, *given: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("not while recording")
        return super().attend(*given)


def test_illegal_candidates_are_refused_and_good_ones_are_recorded_behind_them():
    shape = AttentionShape(2, 5, 2, 64, 16, torch.float32, CUDA)
    stream = torch.cuda.current_stream()
    ways = [WaitsLate(), Waits(), FailsLate(), Sdpa(), WaitsLate(), implementation("triton")]
    for _ in range(2):
        found = choose(shape, layers=2, used=40, repeats=2, mode="graph", among=ways)
        assert set(found["milliseconds"]) == {"sdpa", "triton"}
        assert set(found["refused"]) == {"waits", "waits_late", "fails_late"}
        assert "synchronizing" in found["refused"]["waits"]
        assert found["refused"]["fails_late"] == "ValueError: not while recording"
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
    same(built("graph", ["ar"], "triton"), built("eager", ["ar"], "triton"), [(ONE,), (OTHER,)])


class Peeks:
    """A last piece that reads a length back."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece

    def settle(self, run: Any, *carry: Any) -> Any:
        out = self.piece(run, *carry)
        assert int(run.length.sum()) >= 0
        return out


def test_a_step_that_waits_cannot_be_recorded_and_the_next_decoder_can():
    bad, good = built("graph", ["lantern_pp", "eagle2"], "products")
    (eager,) = built("eager", ["eagle2"], "products")
    stream = torch.cuda.current_stream()
    *others, (phase, last) = bad.pieces()
    bad.pieces = lambda: [*others, (phase, Peeks(last).settle)]
    for _ in range(2):
        with pytest.raises((RuntimeError, DecoderError)):
            image(bad, ONE)
        assert torch.cuda.current_stream() == stream
        same([good], [eager], [(ONE,)])


def replayed(step: Any, launches: int) -> None:
    """Records `step`, of so many launches, and replays it LAUNCHES / launches times."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(LAUNCHES // launches):
        graph.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("group", [1, 4])
@torch.inference_mode()
def test_many_launches_of_the_attention_are_bitwise_equal(group):
    """Splits arrive in any order and count themselves in one place, for prefixes of four lengths
    in turns; the appended keys and values, which the programs of a group share, are spoilt before
    every launch."""
    sizes = (2, 58, 20, 448, 64, torch.bfloat16) if REAL else (1, 5, 4, 256, 16, torch.float32)
    shape = AttentionShape(*sizes, CUDA, group)
    one = implementation("triton_8" if REAL else "triton_4")
    given = [inputs(shape, 1, shape.slots - 70 * i, seed=i) for i in range(3)]
    given.append(inputs(shape, 1, shape.queries, seed=3))  # nothing but the draft
    prepared = [one.prepare(shape, each.mask, each.slots) for each in given]
    size = (-1, shape.kv_heads, -1, shape.head_dim)
    where = [x.slots[:, None, :, None].expand(size) for x in given]
    wrong = torch.zeros(len(given), dtype=torch.bool, device=CUDA)
    first: list[tuple[Any, ...]] = []

    def step() -> None:
        for i, x in enumerate(given):
            keys, values = x.caches[0]
            keys.scatter_(2, where[i], float("nan"))
            values.scatter_(2, where[i], float("nan"))
            found = (one.attend(x.qkv, x.rope, prepared[i], keys, values), keys, values)
            if len(first) < len(given):
                first.append(tuple(each.clone() for each in found))
            for have, want in zip(found, first[i], strict=True):
                wrong[i].logical_or_((have != want).any())

    replayed(step, len(given))
    assert all(bool(each.isfinite().all()) for row in first for each in row)
    assert wrong.tolist() == [False] * len(given)


@torch.inference_mode()
def test_many_launches_of_the_sampling_are_bitwise_equal():
    batch, rows, vocab = (2, 57, 16384) if REAL else (1, 2, 40)
    random = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(batch, rows, vocab, generator=random).to(CUDA)
    u = torch.rand(batch, rows, 4, generator=random).to(CUDA)
    settings = [(1.0, 0, 1.0), (0.7, vocab // 8, 1.0), (1.0, vocab // 8, 0.9)]
    wrong = torch.zeros(len(settings), dtype=torch.bool, device=CUDA)
    first: list[tuple[Any, ...]] = []

    def step() -> None:
        for i, (temperature, top_k, top_p) in enumerate(settings):
            found = sampled(logits, u, temperature, top_k, top_p)
            if len(first) < len(settings):
                first.append(tuple(each.clone() for each in found))
            for have, want in zip(found, first[i], strict=True):
                wrong[i].logical_or_((have != want).any())

    replayed(step, len(settings))
    assert wrong.tolist() == [False] * len(settings)
