"""Places that are refilled: an image decoded after others in its row has the codes and the trace of
a batch of one, whoever wrote the decoder and however its steps are run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from bench.config.compose import compose_study
from bench.config.schema import variants
from decoders.api import DecoderError, Draft, Execution, Generation, Prefill, Sampling, TextFeatures
from decoders.compose import DecoderSpec, build_decoder
from decoders.execution.cpu.execution import Cpu
from decoders.execution.cpu.library import missing
from decoders.execution.eager import Eager
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.tree_proposer import TreeProposer
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier
from tests.decoders.compositions import Traced, entry, with_targets
from tests.decoders.execution.cpu.test_compiled_pieces import DECODERS
from tests.decoders.execution.test_backends import Replayed

PROMPTS = ["a b", "c", "d e f", "g i", "a h k l"]
SAMPLING = Sampling(cfg=2.0, top_k=40)
# VVS skips in its batch's steps.
ALONE = [name for name in DECODERS if not name.startswith("vvs")]
COMPARED = ("kind", "step", "depth", "target_calls", "drafter_calls")
KERNEL = pytest.mark.skipif(missing() is not None, reason="no kernel")


def traced() -> Execution:
    how = Cpu(range(1, 9))
    how.compiler = Traced()
    return how


# Of every kind of loop, tree and noise; eagerly all are tried.
KINDS = ("ar", "sd_chain", "eagle2", "lantern_pp", "block_chain", "scd_gs", "sjd")
CASES = [pytest.param(name, Eager, id=f"{name}-eager") for name in ALONE]
for name in KINDS:
    CASES += [
        pytest.param(name, Cpu, id=f"{name}-kernel", marks=KERNEL),
        pytest.param(name, Replayed, id=f"{name}-graph"),
    ]
for name in ("lantern_pp", "sjd"):
    CASES.append(pytest.param(name, traced, id=f"{name}-compiled", marks=KERNEL))


def decoder_of(name: str, how: Execution, sampling: Sampling = SAMPLING) -> Any:
    study = compose_study([f"decoders=[{entry(name)}]", "model=tiny"])
    return built(variants(study, SAMPLING)[-1].entry.spec, how, sampling)


def built(spec: DecoderSpec, how: Execution, sampling: Sampling = SAMPLING) -> Any:
    model = with_targets(random_model(vocab=128, grid=4, width=32, seed=2))
    how.prepare(model)
    return build_decoder(dataclasses.replace(model, execution=how), spec, sampling)


def made(decoder: Any, prompts: list[str], **more: Any) -> Generation:
    noise = Noise.for_prompts(3, prompts, decoder.model.target.length)
    before = noise.uniform.clone()
    every = [decoder.model.text.encode([prompt]) for prompt in prompts]  # each of its own
    text = TextFeatures(
        *(torch.cat(x) for x in ([e.features for e in every], [e.mask for e in every]))
    )
    found: Generation = decoder.generate(text, noise, **more)
    assert torch.equal(noise.uniform, before), "the caller's noise is as it was"
    return found


def require_alone(decoder: Any, rows: int) -> Generation:
    """Every image of `rows` rows that are refilled is that of a batch of one."""
    many = made(decoder, PROMPTS, rows=rows)
    for i, prompt in enumerate(PROMPTS):
        one = made(decoder, [prompt])
        steps = int(one.trace.target_calls[0])
        assert torch.equal(many.codes[i], one.codes[0]), f"image {i}"
        for name in COMPARED:
            assert torch.equal(getattr(many.trace, name)[i], getattr(one.trace, name)[0]), name
        assert torch.equal(many.trace.accepted[i, :steps], one.trace.accepted[0])
        assert (many.trace.accepted[i, steps:] == -1).all()
        for name in ("tv_shift", "bound", "expected"):
            mine, alone = getattr(many.trace, name)[i], getattr(one.trace, name)[0]
            assert torch.allclose(mine, alone, atol=1e-4, equal_nan=True), name
    return many


@pytest.mark.parametrize(("name", "how"), CASES)
def test_refilled_images_are_those_of_a_batch_of_one(name: str, how: Any) -> None:
    if how is traced:
        torch._dynamo.reset()
    require_alone(decoder_of(name, how()), 2)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", ["ar", "sd_chain", "sjd"])
def test_any_number_of_rows_will_do(name: str, rows: int) -> None:
    greedy = Sampling(temperature=0, cfg=2.0)
    for sampling in (SAMPLING, greedy, Sampling()):
        require_alone(decoder_of(name, Eager(), sampling), rows)
    require_alone(decoder_of(name, Replayed()), rows)


def test_a_recorded_step_stays_where_it_was() -> None:
    """Rows are replaced in place, and a new prefill allocates one cache of a single image."""
    decoder = decoder_of("lantern_pp", Replayed())
    for _ in range(2):
        made(decoder, PROMPTS, rows=3)
    assert [*decoder.prepared] == [3]


class Counting(TreeProposer):
    """A proposer of one's own, whose session counts the steps of its batch."""

    def begin(self, start: Prefill) -> Any:
        session: Any = super().begin(start)
        session.steps, inner = 0, session.propose

        def propose(*given: Any) -> Draft:
            session.steps += 1
            return inner(*given)

        session.propose = propose
        return session


def test_what_no_image_owns_alone_is_refused() -> None:
    plain: Any = decoder_of("sd_chain", Eager())
    part = Counting(plain.drafter, plain.tree)
    decoder = type(plain)(plain.model, SAMPLING, part, TokenVerifier(Exact()))
    said = r"\.session\.steps is \d+ by now, and 0 of an image that begins"
    with pytest.raises(DecoderError, match=said) as raised:
        made(decoder, PROMPTS, rows=3)
    assert "latency.requests=null" in str(raised.value)
    assert made(decoder, PROMPTS).codes.shape == (5, 16)  # as a whole it is decoded as before


def test_a_loop_that_skips_in_the_steps_of_its_batch_is_refused() -> None:
    with pytest.raises(DecoderError, match=r"session\.turn is \d+ by now"):
        made(decoder_of("vvs", Eager()), PROMPTS, rows=3)
