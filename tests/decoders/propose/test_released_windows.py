"""Released departures of the Jacobi family that show in batches and in noise: SJD's batch minimum,
SCD-GS's row that is used again."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.verify.released import BatchLeast
from tests.decoders.compositions import EXACT, LOOP

SIZE, SAMPLING = 36, Sampling(temperature=3.0)  # hot: laws are nearly flat
MODEL = random_model(vocab=4, grid=6, seed=3)
LEAST = PartSpec("decoders.verify.released.BatchLeast")
RELEASED = PartSpec("decoders.propose.jacobi.Jacobi", {"window": 6, "released": True})
GUMBEL = PartSpec("decoders.propose.gumbel.Gumbel", {"window": 6})
ROW = PartSpec("decoders.verify.released.ReusedRow", {"first": 3, "last": 10})


def decoded(proposer: PartSpec, acceptance: PartSpec, images: int) -> Any:
    spec = DecoderSpec("x", LOOP, acceptance=acceptance, proposer=proposer)
    names = [f"p{i}" for i in range(images)]
    noise = Noise.for_prompts(0, names, SIZE)
    return build_decoder(MODEL, spec, SAMPLING).generate(MODEL.text.encode(names), noise)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Drafts and verdicts of a released batch, step by step."""
    shown: list[Any] = []
    decide = BatchLeast.decide

    def noting(self: Any, law: Any, draft: Any, noise: Any, place: Any, state: Any) -> Any:
        made = decide(self, law, draft, noise, place, state)
        shown.append((place.clone(), draft.codes.clone(), draft.q.clone(), made))
        return made

    monkeypatch.setattr(BatchLeast, "decide", noting)
    return shown


def test_a_batch_commits_its_least_and_keeps_what_waits_with_its_old_law(watched):
    made = decoded(RELEASED, LEAST, 3)
    accepted = made.trace.accepted
    assert bool((accepted == accepted[:1]).all()) and bool((accepted > 0).any())
    waited = 0
    for (place, codes, q, found), (_, new, law, _) in pairwise(watched):
        least, own = int(found.count[0]), found.nodes[:, -1]
        assert bool((found.count == least).all()) and int(own.min()) == least
        for b in range(3):
            here = int(place[b]) + least
            if int(own[b]) > least and here < SIZE:  # its next accepted draft is the code behind
                assert int(found.last_code[b]) == int(codes[b, least + 1])
                assert int(made.codes[b, here]) == int(codes[b, least + 1])
            for old in range(least + 2, int(own[b]) + 1):
                level = old - least - 1
                assert int(new[b, level]) == int(codes[b, old])
                torch.testing.assert_close(law[b, level - 1], q[b, old - 1])
                waited += 1
    assert waited > 5


def test_alone_it_keeps_nothing(watched):
    decoded(RELEASED, LEAST, 1)
    for _, _, _, found in watched:
        assert int(found.nodes[0, -1]) == int(found.count[0])


def test_codes_that_are_drawn_one_by_one_share_their_noise():
    """On nearly flat laws the same row draws the same code, and rows of their own do not."""

    def repeats(acceptance: PartSpec) -> float:
        codes = decoded(GUMBEL, acceptance, 200).codes
        ends = torch.cat([codes[:, 1:3], codes[:, -10:]], 1)  # code 0 is the prefill's
        return float((ends[:, 1:] == ends[:, :-1]).float().mean())

    assert repeats(EXACT) < 0.45 < 0.55 < repeats(ROW)


def test_elsewhere_its_drafts_are_tested_as_ever():
    """One forward for each of the first and the last codes, accepted drafts between them."""
    trace = decoded(GUMBEL, ROW, 4).trace
    for row in trace.step.tolist():
        assert row[:3] == [0, 1, 2]
        alone = row[-4:]  # those before may end a longer step
        assert alone == list(range(alone[0], alone[0] + 4))
    assert int(trace.accepted.max()) > 0
