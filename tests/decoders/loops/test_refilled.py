"""Positions that are refilled: an image decoded after others in its row has the codes and the trace
of a batch of one, whoever wrote the decoder and however its steps are run."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Draft, Execution, Generation, Prefill, Sampling, TextFeatures
from decoders.compose import build_decoder
from decoders.execution.cpu.execution import Kernel
from decoders.execution.eager import Eager
from decoders.models.random_weights import random_model
from decoders.noise import Noise
from decoders.propose.tree_proposer import TreeProposer
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier
from tests.decoders.compositions import DECODERS, TracedKernel, small_spec, with_targets
from tests.decoders.execution.cpu.cases import needs_kernel
from tests.decoders.execution.test_backends import Replayed

PROMPTS = ["a b", "c", "d e f", "g i", "a h k l"]
SAMPLING = Sampling(cfg=2.0, top_k=40)
# VVS skips in its batch's steps.
ALONE = [name for name in DECODERS if not name.startswith("vvs")]
COMPARED = ("kind", "step", "depth", "target_calls", "drafter_calls")


# Of every kind of loop, tree and noise; eagerly all are tried.
ANY_ROWS = ("ar", "sd_chain", "sjd", "pjd", "flash")  # tried in one row, and in more than images
KINDS = ("ar", "sd_chain", "eagle2", "lantern_pp", "block_chain", "scd_gs", "sjd")
CASES = [pytest.param(name, Eager, 1.0, id=f"{name}-eager") for name in ALONE]
CASES += [pytest.param(name, Eager, 0.0, id=f"{name}-greedy") for name in ("ar", "sd_chain", "sjd")]
for name in KINDS:
    CASES += [
        pytest.param(name, Kernel, 1.0, id=f"{name}-kernel", marks=needs_kernel),
        pytest.param(name, Replayed, 1.0, id=f"{name}-graph"),
    ]
for name in ("sd_chain", "sjd"):
    CASES.append(pytest.param(name, TracedKernel, 1.0, id=f"{name}-compiled", marks=needs_kernel))


def decoder_of(name: str, how: Execution, sampling: Sampling = SAMPLING) -> Any:
    model = with_targets(random_model(vocab=128, grid=4, width=32, seed=2))
    model = replace(how.prepare(model), execution=how)
    return build_decoder(model, small_spec(name), sampling)


def decoded(decoder: Any, prompts: list[str], **given: Any) -> Generation:
    noise = Noise.for_prompts(3, prompts, decoder.model.target.length)
    before = noise.uniform.clone()
    text = TextFeatures.joined([decoder.model.text.encode([prompt]) for prompt in prompts])
    generation: Generation = decoder.generate(text, noise, **given)
    assert torch.equal(noise.uniform, before), "the caller's noise is as it was"
    return generation


def require_same_images(many: Generation, alone: list[Generation]) -> None:
    for i, one in enumerate(alone):
        steps = int(one.trace.target_calls[0])
        assert torch.equal(many.codes[i], one.codes[0]), f"image {i}"
        for name in COMPARED:
            assert torch.equal(getattr(many.trace, name)[i], getattr(one.trace, name)[0]), name
        assert torch.equal(many.trace.accepted[i, :steps], one.trace.accepted[0])
        assert (many.trace.accepted[i, steps:] == -1).all()
        for name in ("tv_shift", "bound"):
            mine, other = getattr(many.trace, name)[i], getattr(one.trace, name)[0]
            assert torch.allclose(mine, other, atol=1e-4, equal_nan=True), name


@pytest.mark.parametrize(("name", "how", "temperature"), CASES)
def test_refilled_images_are_those_of_a_batch_of_one(
    name: str, how: Any, temperature: float
) -> None:
    """Copies, as a later image may reuse the buffers."""
    if how is TracedKernel:
        torch._dynamo.reset()
    sampled = temperature > 0
    decoder = decoder_of(name, how(), SAMPLING if sampled else Sampling(temperature, cfg=2.0))
    alone = [copy.deepcopy(decoded(decoder, [prompt])) for prompt in PROMPTS]
    any_rows = sampled and name in ANY_ROWS and how in (Eager, Replayed)
    for count in (1, 2, 9) if any_rows else (2,):
        require_same_images(decoded(decoder, PROMPTS, rows=count), alone)


class Counting(TreeProposer):
    """A proposer of one's own, whose session counts the steps of its batch."""

    def begin(self, prefill: Prefill) -> Any:
        session: Any = super().begin(prefill)
        session.steps, inner = 0, session.propose

        def propose(*given: Any) -> Draft:
            session.steps += 1
            return inner(*given)

        session.propose = propose
        return session


def test_what_no_image_owns_alone_is_refused() -> None:
    plain: Any = decoder_of("sd_chain", Eager())
    proposer = Counting(plain.drafter, plain.tree)
    counting = type(plain)(plain.model, SAMPLING, proposer, TokenVerifier(Exact()))
    for decoder, name in ((counting, "steps"), (decoder_of("vvs", Eager()), "turn")):
        message = rf"session\.{name} is \d+ by now, and -?\d .*latency\.requests=null"
        with pytest.raises(DecoderError, match=message):
            decoded(decoder, PROMPTS, rows=3)
        assert decoded(decoder, PROMPTS).codes.shape == (5, 16)  # as a whole it is decoded


@pytest.mark.parametrize("name", ["sd_chain", "eagle2", "sjd", "zipar", "pjd"])
def test_verified_pairs_of_an_image_do_not_depend_on_its_row(name: str) -> None:
    decoder = decoder_of(name, Eager())
    whole = decoded(decoder, PROMPTS, pairs=6).trace.pairs
    refilled = decoded(decoder, PROMPTS, pairs=6, rows=2).trace.pairs
    assert len(refilled.image) == len(whole.image) > 0
    for image in range(len(PROMPTS)):
        each = [pairs_of(pairs, image) for pairs in (refilled, whole)]
        assert torch.equal(each[0][0], each[1][0]), "the same positions"
        for one, other in zip(each[0][1:], each[1][1:], strict=True):
            torch.testing.assert_close(one, other)


def pairs_of(pairs: Any, image: int) -> tuple[torch.Tensor, ...]:
    """Positions, laws, children and their validity of an image's pairs, in the image's order."""
    mine = (pairs.image == image).nonzero().flatten()
    mine = mine[(pairs.position + pairs.depth)[mine].argsort(stable=True)]
    columns = [pairs.position + pairs.depth, pairs.p, pairs.children, pairs.valid]
    columns += [] if pairs.q is None else [pairs.q]
    return tuple(column[mine] for column in columns)
