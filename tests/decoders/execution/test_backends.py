"""A backend executes the same step: compiled and recorded steps give the codes of eager ones."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Generation, ImageModel, Sampling
from decoders.cache import KVCache
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution import execution
from decoders.execution.compiled import CUDA_OPTIONS, Compiled, compiles
from decoders.execution.cuda_graphs import Graphed
from decoders.execution.eager import Execution
from decoders.execution.state import fill, tensors
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import CHAIN, EAGLE, EXACT, LOOP, SPECS, Traced

PROMPTS = [["a b"], ["c d e"], ["f"]]
SHORT = DecoderSpec("short", LOOP, EAGLE, PartSpec(CHAIN.target, {"depth": 1}), EXACT)
PAIRS = 6  # verified pairs recorded of an image


class Replayed(Graphed):
    """A graph on the CPU: a replay runs the recorded step again on the recorded state."""

    def _capture(
        self, step: Callable[[], tuple[Any, ...]], device: torch.device
    ) -> tuple[Callable[[], None], tuple[Any, ...]]:
        carry = list(step())

        def replay() -> None:  # what a replay returns stands where the recording's stood
            fill(carry, tensors([*step()]))

        return replay, tuple(carry)


def codes_of(
    how: Execution, spec: str | DecoderSpec, temperature: float, layers: int = 2
) -> tuple[list[Any], ImageModel]:
    model = dataclasses.replace(random_model(vocab=16, grid=4, layers=layers), execution=how)
    spec = SPECS[spec] if isinstance(spec, str) else spec
    decoder = build_decoder(model, spec, Sampling(temperature=temperature, cfg=2.0))
    made = []
    for prompts in PROMPTS:
        noise = Noise.for_prompts(3, prompts, model.target.length)
        text = model.text.encode(prompts)
        # A copy, as a later image may reuse the buffers.
        made.append(copy.deepcopy(decoder.generate(text, noise, pairs=PAIRS)))
    return made, model


def assert_same(made: list[Any], wanted: list[Any]) -> None:
    for mine, other in zip(made, wanted, strict=True):
        assert torch.equal(mine.codes, other.codes)
        assert torch.equal(mine.trace.kind, other.trace.kind)
        assert torch.equal(mine.trace.accepted, other.trace.accepted)
        assert torch.equal(mine.trace.drafter_calls, other.trace.drafter_calls)
        assert torch.allclose(mine.trace.tv_shift, other.trace.tv_shift, atol=1e-5)
        pairs, others = mine.trace.pairs, other.trace.pairs
        assert (pairs is None) == (others is None)
        if pairs is not None:
            assert torch.allclose(pairs.p, others.p, atol=1e-5)


FIRST, SECOND = ["a b", "c"], ["d", "e f g"]
CACHES = {"ar": 1, "lantern_pp": 2, "free": 2, "medusa": 1}  # target's, and drafter's


def decoder_of(name: str) -> Any:
    model = dataclasses.replace(random_model(vocab=16, grid=4), execution=Replayed())
    return build_decoder(model, SPECS[name], Sampling(cfg=2.0))


def decoded(decoder: Any, prompts: list[str]) -> Generation:
    model = decoder.model
    noise = Noise.for_prompts(3, prompts, model.target.length)
    return copy.deepcopy(decoder.generate(model.text.encode(prompts), noise))


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
    assert_same(found, [decoded(decoder_of(name), SECOND), decoded(decoder_of(name), FIRST)])


@dataclasses.dataclass
class CompiledReplay(Replayed):
    """A recorded step of compiled pieces, on the CPU."""

    compiler: Compiled = dataclasses.field(default_factory=Traced)

    def _compiles(self, device: torch.device) -> bool:
        return True


def test_a_recorded_step_is_made_of_compiled_pieces():
    how = CompiledReplay()
    made, _ = codes_of(how, "ar", 1.0)
    wanted, _ = codes_of(execution("eager"), "ar", 1.0)
    assert_same(made, wanted)
    assert {one.trace.path["forward"] for one in made} == {"compiled"}


def test_a_piece_that_cannot_be_compiled_is_recorded_as_it_is(monkeypatch, caplog):
    def broken(self: Compiled, *_: Any) -> Any:
        def call(run: Any, *carry: Any) -> Any:
            if hasattr(run, "codes"):
                run.codes.fill_(0)  # half a step is done when it fails
            raise RuntimeError("graph break\nin line 3")

        return call

    monkeypatch.setattr(Compiled, "piece", broken)
    made, _ = codes_of(CompiledReplay(), "ar", 1.0)
    wanted, _ = codes_of(execution("eager"), "ar", 1.0)
    assert_same(made, wanted)
    for phase in ("prefill", "forward"):
        assert f"{phase!r} runs operator by operator" in caplog.text
    assert "(graph break)" in caplog.text


def test_a_compiled_step_gives_the_codes_of_an_eager_one_and_has_no_guards(monkeypatch) -> None:
    """torch.compile takes the filter of guards out of the options it is given."""
    filters, real = [], torch.compile
    assert compiles(torch.device("cpu"))  # asked once, before the filters are looked at

    def seen(function: Any, *, options: dict[str, Any], **more: Any) -> Any:
        filters.append(options.get("guard_filter_fn"))
        return real(function, options=options, **more)

    monkeypatch.setattr(torch, "compile", seen)
    how = Compiled()
    made, _ = codes_of(how, SHORT, 1.0, layers=1)
    wanted, _ = codes_of(execution("eager"), SHORT, 1.0, layers=1)
    assert_same(made, wanted)
    assert {one.trace.path["forward"] for one in made} == {"compiled"}
    assert len(filters) >= 3 and set(filters) == {torch.compiler.skip_all_guards_unsafe}


@torch.inference_mode()
def test_one_compiled_prefill_serves_caches_of_any_size():
    how, model = Traced(), random_model(vocab=16, grid=4)
    target, text = model.target, model.text.encode(["a b", "c"])
    for capacity in (40, 64):
        mine, right = (target.new_cache(4, capacity) for _ in range(2))
        hidden = how.prefill(target, text, 2, mine)
        torch.testing.assert_close(hidden, target.prefill(text, 2, right))
        torch.testing.assert_close(mine.data, right.data)
        assert mine.data.any()
    assert len(how.prefills) == 1


def test_compiled_pieces_of_two_decoders_are_two():
    """Compiled pieces have no guards: another temperature must not meet the first one's code."""
    how = Traced()
    for temperature in (0.0, 1.0):
        made, _ = codes_of(how, "ar", temperature)
        wanted, _ = codes_of(execution("eager"), "ar", temperature)
        assert_same(made, wanted)


def test_unknown_execution_and_graphs_on_a_cpu_are_refused():
    with pytest.raises(DecoderError, match="'eager', 'compile', 'graph' or 'cpu', found 'fast'"):
        execution("fast")
    with pytest.raises(DecoderError, match="CUDA graph was asked for on cpu"):
        codes_of(execution("graph"), "ar", 1.0)


@pytest.mark.parametrize("how", [execution("eager"), Replayed()], ids=["eager", "recorded"])
def test_where_looks_cost_something_no_step_is_run_behind_the_end(how):
    """Looks come when all rows can be done at the earliest: the same codes, from as many steps."""
    model = dataclasses.replace(random_model(vocab=16, grid=8), execution=how)
    steps = []
    text, noise = model.text.encode(["a"]), Noise.for_prompts(3, ["a"], model.target.length)
    made = []
    for synchronous in (True, False):
        decoder: Any = build_decoder(model, SPECS["eagle2"], Sampling(cfg=2.0))
        decoder.synchronous = synchronous
        pieces, count = decoder.pieces(), [0]

        def draft(run: Any, first: Any = pieces[0][1], count: list[int] = count) -> Any:
            count[0] += 1
            return first(run)

        decoder.pieces = lambda draft=draft, pieces=pieces: [("draft", draft), *pieces[1:]]
        made.append(copy.deepcopy(decoder.generate(text, noise)))
        steps.append(count[0])
    assert torch.equal(made[0].codes, made[1].codes)
    recording = 0 if how.name == "eager" else 2  # once to allocate, once to record
    assert steps == [int(made[0].trace.target_calls) + recording] * 2


def test_the_options_of_a_card_are_known_here():
    """An unknown name, or a value of another type, is an error of torch.compile."""
    torch.compile(torch.nn.Identity(), options=CUDA_OPTIONS)
