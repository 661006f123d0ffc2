"""An AR step as one call of the CPU kernel: what the tensor code computes, and where it is left
to the tensor code."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch

from decoders.api import Generation, ImageModel, NumericalError, Sampling
from decoders.executed import executed
from decoders.execution.cpu.speculation import NativeNext
from decoders.execution.eager import Eager
from decoders.loops import autoregressive
from decoders.loops.autoregressive import Autoregressive
from decoders.models.transformer import Transformer
from decoders.noise import Noise
from tests.decoders.execution.cpu.cases import model_of as model_in
from tests.decoders.execution.cpu.cases import needs_kernel, threads

pytestmark = needs_kernel
PROMPTS = ["a b", "c d e", "f"]
model_of = partial(model_in, vocab=50)


def image(model: ImageModel, sampling: Sampling, batch: int = 1) -> Generation:
    noise = Noise.for_prompts(3, PROMPTS[:batch], model.target.length)
    return Autoregressive(model, sampling).generate(model.text.encode(PROMPTS[:batch]), noise)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry a native step."""
    made: list[int] = []
    run = NativeNext.__call__

    def counted(self: NativeNext, count: int = 1) -> None:
        made.extend([1] * count)
        run(self, count)

    monkeypatch.setattr(NativeNext, "__call__", counted)
    return made


def assert_same(found: Generation, wanted: Generation) -> None:
    assert torch.equal(found.codes, wanted.codes)
    for name in ("kind", "step", "depth", "moved", "bound", "accepted", "target_calls"):
        assert torch.equal(getattr(found.trace, name), getattr(wanted.trace, name)), name
    assert found.trace.seconds.keys() == wanted.trace.seconds.keys() == {"prefill", "forward"}


@pytest.mark.parametrize("vocab", [50, 64, 1003])
@pytest.mark.parametrize(
    ("batch", "cfg", "temperature"), [(3, 3.0, 0.0), (3, 3.0, 0.7), (3, 1.0, 1.0), (1, 3.0, 1.0)]
)
def test_images_are_those_of_the_tensor_code(temperature, cfg, batch, vocab, calls) -> None:
    sampling = Sampling(temperature=temperature, cfg=cfg)
    wanted = image(model_of(False, vocab=vocab), sampling, batch)
    assert not calls
    found = image(model_of(True, vocab=vocab), sampling, batch)
    assert len(calls) == 15
    assert_same(found, wanted)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("batch", [1, 20])
def test_steps_of_one_call_are_those_of_many(batch: int, count: int, monkeypatch) -> None:
    """20 images of two rows each: by threads that own rows, and by threads that share them."""
    model, sampling = model_of(True, dtype=torch.bfloat16), Sampling(cfg=3.0)
    prompts = (PROMPTS * batch)[:batch]
    noise = Noise.for_prompts(3, [f"{i}" for i in range(batch)], model.target.length)

    def drawn(at_once: int) -> Generation:
        monkeypatch.setattr(autoregressive, "AT_ONCE", at_once)
        return Autoregressive(model, sampling).generate(model.text.encode(prompts), noise)

    with threads(min(count, 2)):
        assert_same(drawn(count + 1), drawn(1))


@pytest.mark.parametrize("count", [1, 2])
def test_an_image_has_the_codes_that_it_has_alone(count: int) -> None:
    model, sampling = model_of(True, dtype=torch.bfloat16), Sampling(cfg=3.0)
    with threads(count):
        both = image(model, sampling, 3).codes
        for row, prompt in enumerate(PROMPTS):
            noise = Noise.for_prompts(3, [prompt], model.target.length)
            text = model.text.encode(PROMPTS)
            own = dataclasses.replace(
                text, features=text.features[row : row + 1], mask=text.mask[row : row + 1]
            )
            assert torch.equal(
                Autoregressive(model, sampling).generate(own, noise).codes[0], both[row]
            )


class OwnHead(Transformer):
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().logits(hidden)


class OwnGuidance(Transformer):
    def guided_logits(self, hidden: torch.Tensor, cfg: float) -> torch.Tensor:
        return super().guided_logits(hidden, cfg)


class OwnCodes(Transformer):
    def token_ids(self, codes: torch.Tensor) -> torch.Tensor:
        return super().token_ids(codes)


@pytest.mark.parametrize("kind", [OwnHead, OwnGuidance, OwnCodes])
def test_a_target_with_methods_of_its_own_keeps_them(kind: type, calls) -> None:
    sampling = Sampling(cfg=2.0)
    wanted = image(model_of(True), sampling)
    assert calls.clear() is None
    model = model_of(False)
    model.target.__class__ = kind
    assert torch.equal(image(executed(model, "cpu"), sampling).codes, wanted.codes)
    assert not calls


class Named(Eager):
    """A backend of someone's own."""

    name = "own"


def test_filters_run_in_the_kernel_structural_codes_and_other_backends_do_not(calls) -> None:
    model = model_of(True)
    image(dataclasses.replace(model, execution=Named()), Sampling())
    assert not calls
    cuts = [Sampling(top_k=5), Sampling(top_p=0.9), Sampling(top_k=9, top_p=0.7, temperature=0.8)]
    for cut in (*cuts, Sampling(top_k=50), Sampling(temperature=0, top_k=5, top_p=0.5)):
        assert_same(image(model, cut), image(model_of(False), cut))
        assert calls
        calls.clear()
    target: Any = model.target
    target.barred = torch.zeros(16, target.vocab_size, dtype=torch.bool)
    target.barred[7] = torch.arange(target.vocab_size) != 3
    assert image(model, Sampling()).codes[0, 7] == 3
    assert not calls


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_told(value: float, temperature: float, calls) -> None:
    """From the second code on: the code sampled from the prefill leads to them."""
    model = model_of(False)
    target: Any = model.target
    target.tok_embeddings.weight[:] = value
    model = executed(model, "cpu")
    with pytest.raises(NumericalError, match="NaN or infinity"):
        image(model, Sampling(temperature=temperature, cfg=2.0))
    assert calls
