"""A backend executes the same step: compiled and captured steps give the codes of eager ones, also
on a machine without a compiler."""

import copy
import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Execution, ImageModel, Sampling
from decoders.cache import KVCache
from decoders.compose import DecoderSpec, build_decoder
from decoders.execution import execution
from decoders.execution.compiled import Compiled, compiles
from decoders.execution.cuda_graphs import Graphed
from decoders.execution.eager import Eager
from decoders.execution.state import fill, tensors
from decoders.models.random_weights import random_model
from tests.decoders.compositions import EVERY, SPECS, Traced, images

PROMPTS = [["a b"], ["c d e"], ["f"]]
PAIRS = 6  # verified pairs kept of an image
CPU = torch.device("cpu")


@dataclasses.dataclass
class Replayed(Graphed):
    """A graph on the CPU: a replay runs the captured step again on its state."""

    sizes: Collection[int] = EVERY

    def prepare(self, model: ImageModel) -> ImageModel:
        return model

    def _capture(
        self, step: Callable[[], tuple[Any, ...]], *_: Any
    ) -> tuple[Callable[[], None], tuple[Any, ...]]:
        carry = list(step())

        def replay() -> None:  # what a replay returns stands where the capture's stood
            fill(carry, tensors([*step()]))

        return replay, tuple(carry)


@dataclasses.dataclass
class CompiledReplay(Traced, Replayed):
    """A captured step of compiled pieces, on the CPU."""

    def _compiles(self, device: torch.device) -> bool:
        return True


def built(how: Execution, spec: DecoderSpec, temperature: float = 1.0, **shape: Any) -> Any:
    model = random_model(**({"vocab": 16, "grid": 4} | shape))
    model = dataclasses.replace(model, execution=how)
    return build_decoder(model, spec, Sampling(temperature=temperature, cfg=2.0))


def generations(*parts: Any, **shape: Any) -> list[Any]:
    """Of the decoder that is `built` so. Copies, as a later image may reuse the buffers."""
    decoder = built(*parts, **shape)
    return [copy.deepcopy(images(decoder, prompts, pairs=PAIRS)) for prompts in PROMPTS]


def assert_same(some: list[Any], wanted: list[Any]) -> None:
    for mine, other in zip(some, wanted, strict=True):
        assert torch.equal(mine.codes, other.codes)
        for name in ("kind", "accepted", "drafter_calls"):
            assert torch.equal(getattr(mine.trace, name), getattr(other.trace, name)), name
        assert torch.allclose(mine.trace.tv_shift, other.trace.tv_shift, atol=1e-5)
        pairs, others = mine.trace.pairs, other.trace.pairs
        assert (pairs is None) == (others is None)
        if pairs is not None:
            assert torch.allclose(pairs.p, others.p, atol=1e-5)


def require_eager(how: Execution, *rest: Any, **shape: Any) -> list[Any]:
    """What an execution decodes, which is what eager execution does."""
    some = generations(how, *rest, **shape)
    assert_same(some, generations(Eager(), *rest, **shape))
    return some


def test_later_images_need_no_second_cache_of_the_target(monkeypatch):
    decoder, caches, init = built(Replayed(), SPECS["lantern_pp"]), [], KVCache.__init__
    images(decoder, ["a b", "c"])

    def counted(self: KVCache, *given: Any) -> None:
        init(self, *given)
        caches.append(self)

    monkeypatch.setattr(KVCache, "__init__", counted)
    images(decoder, ["d", "e f g"])
    assert len(caches) == 1  # the drafter's


def test_a_piece_that_cannot_be_compiled_is_captured_as_it_is(monkeypatch, caplog):
    def broken(self: Compiled, *_: Any) -> Any:
        def call(state: Any, *carry: Any) -> Any:
            if hasattr(state, "codes"):
                state.codes.fill_(0)  # half a step is done when it fails
            raise RuntimeError("graph break\nin line 3")

        return call

    monkeypatch.setattr(Compiled, "piece", broken)
    require_eager(CompiledReplay(), SPECS["ar"])
    for phase in ("prefill", "forward"):
        assert f"{phase!r} runs operator by operator" in caplog.text
    assert "(graph break)" in caplog.text


def test_compiled_pieces_of_two_decoders_are_two():
    """Compiled pieces have no guards: another temperature must not meet the first one's code."""
    how = Traced()
    for temperature in (0.0, 1.0):
        require_eager(how, SPECS["ar"], temperature)


def test_unknown_execution_and_graphs_on_a_cpu_are_refused():
    with pytest.raises(DecoderError, match="'eager', 'compile' or 'graph', found 'fast'"):
        execution("fast", (), CPU)
    with pytest.raises(DecoderError, match="CUDA graph was asked for on cpu"):
        execution("graph", (1,), CPU)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    def compile(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC\nor so")

    monkeypatch.setattr(torch, "compile", compile)
    compiles.cache_clear()
    yield
    compiles.cache_clear()


def test_without_a_compiler_there_is_one_warning_and_the_codes_are_the_same(no_compiler, caplog):
    some = require_eager(Compiled({1}), SPECS["lantern_pp"])
    assert set(some[0].trace.path.values()) == {"eager"}
    assert not any(Graphed()._compiles(torch.device(name)) for name in ("cuda", "cuda", "cpu"))
    warnings = [r.getMessage() for r in caplog.records if "Failed to find C" in r.getMessage()]
    assert [w.partition("work on ")[2].partition(" ")[0] for w in warnings] == ["cpu", "cuda"]
