"""A uniform that decided something is never used again: what a verifier that looks ahead meets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Draft, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.executed import executed
from decoders.execution.cpu.library import missing
from decoders.models.small import random_model
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, TARGET_SLOT, Noise
from decoders.verify.block import Block
from tests.decoders.compositions import CHAIN, EAGLE, LOOP

SAMPLING = Sampling(cfg=2.0)
VERIFIED = DecoderSpec("verified", LOOP, EAGLE, CHAIN, PartSpec("decoders.verify.block.Block"))
JACOBI = PartSpec("decoders.propose.jacobi.Jacobi", {"window": 4})
NATIVE = pytest.param("cpu", marks=pytest.mark.skipif(missing() is not None, reason="no kernel"))


class Watched(Block):
    """Remembers which number stood where, in every step."""

    def __init__(self, model: Any) -> None:
        self.numbers: list[dict[tuple[int, int], float]] = []  # a step's, by place and slot
        self.rounds: list[list[int]] = []

    def verify(self, law: Any, draft: Draft, noise: Any, place: torch.Tensor, state: Any) -> Any:
        places = place[:1, None] + torch.arange(draft.levels)  # of the first image
        slots = (ACCEPT_SLOT, DRAFT_SLOT, TARGET_SLOT)
        table = noise.uniform[0, places[0]][:, slots].tolist()
        self.numbers.append({
            (p, slot): number
            for p, row in zip(places[0].tolist(), table, strict=True)
            for slot, number in zip(slots, row, strict=True)
        })  # fmt: skip
        self.rounds.append(noise.round.tolist())
        return super().verify(law, draft, noise, place, state)


@pytest.mark.parametrize("how", ["eager", NATIVE])
def test_a_verifier_that_looks_ahead_never_meets_a_uniform_twice(how: str) -> None:
    """Neither do the drafts, whatever the proposer; AR's uniforms stay, and so does the caller's
    table. Rounds are the image's own."""
    model = executed(random_model(vocab=12, grid=5, seed=1), how)
    for spec in (VERIFIED, replace(VERIFIED, drafter=None, tree=None, proposer=JACOBI)):
        prompts = ["a", "b", "c"]
        noise = Noise.for_prompts(1, prompts, 25)
        before = noise.uniform.clone()
        loop: Any = build_decoder(
            model, replace(spec, acceptance=PartSpec(f"{__name__}.Watched")), SAMPLING
        )
        made = loop.generate(model.text.encode(prompts), noise)
        steps = loop.verifier.numbers
        taken = made.trace.target_calls.tolist()  # an image's own count
        assert loop.verifier.rounds == [[min(i, n) for n in taken] for i in range(len(steps))]
        met: dict[Any, list[float]] = {}
        for step in steps[: taken[0]]:  # of the first image, which is watched
            for where, number in step.items():
                met.setdefault(where, []).append(number)
        again = [found for (_, slot), found in met.items() if slot != TARGET_SLOT]
        assert max(map(len, again)) > 1  # a place is looked at again
        assert all(len({*found}) == len(found) for found in again)
        assert all(len({*found}) == 1 for (_, slot), found in met.items() if slot == TARGET_SLOT)
        assert torch.equal(noise.uniform, before)


def test_a_verifier_that_looks_ahead_refuses_a_table_given_by_hand() -> None:
    model = random_model(vocab=12, grid=5, seed=1)
    noise = Noise(Noise.for_prompts(1, ["a"], 25).uniform)
    with pytest.raises(DecoderError, match="table given by hand"):
        build_decoder(model, VERIFIED, SAMPLING).generate(model.text.encode(["a"]), noise)
