"""Drafters with a class of their own: they decode exactly, trained or not; training drafts what
decoding drafts; what is saved loads."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Sampling, completed
from decoders.compose import PartSpec, build_part, resolve
from decoders.models.nets.transformer import transformer_of
from decoders.models.random_weights import random_model
from decoders.propose.drafters.eagle import EagleLearner
from decoders.propose.drafters.griffin import GriffinLearner
from decoders.propose.drafters.medusa import Medusa, MedusaLearner
from decoders.training.drafter import LossConfig, aligned, drafter_loss, logits_at, measure_rates
from decoders.training.states import Drafted, Learner
from tests.decoders.compositions import EAGLE, PATHS, prefilled, states_of, through_cache

LENGTH = 16
MODEL = random_model(vocab=24, grid=4, layers=3)
TARGET = transformer_of(MODEL)
SAMPLING = Sampling(cfg=2.0)
PATHS = {"Eagle": EAGLE.target, **PATHS}


def own_model() -> ImageModel:
    """With drafters that a test may change."""
    return replace(MODEL, drafters=copy.deepcopy(MODEL.drafters))


def learner_of(name: str) -> Any:
    """With weights that say something everywhere."""
    torch.manual_seed(0)
    learner = completed(resolve(PATHS[name] + "Learner")(MODEL), Learner)
    for value in learner.net.parameters():
        value.data.add_(torch.randn_like(value) * 0.1)
    return learner


@pytest.mark.parametrize("root", [0, 6])
@pytest.mark.parametrize("name", PATHS)
def test_training_drafts_what_decoding_drafts(name: str, root: int) -> None:
    learner = learner_of(name)
    states, levels = states_of(MODEL, learner), max(root, 3)
    learner.net.eval()
    with torch.no_grad():
        drafts = learner.draft(states, torch.tensor([root]), levels)
    part = resolve(PATHS[name])(own_model())
    part.net.load_state_dict(learner.net.state_dict())
    text, image = states.images.text, states.images.codes
    _, cache = through_cache(MODEL, text, image[:, :root], LENGTH)
    prefill = prefilled(MODEL, text, states.hidden, SAMPLING, cache)
    session = part.begin(prefill, levels + 1, 4)
    read = states.hidden[:, TARGET.prefix - 1 : TARGET.prefix + root]
    count, zero = torch.full((3,), root + 1), torch.zeros(3, dtype=torch.long)
    decoding = [session.advance(read, image[:, : root + 1], count, zero)]
    for d in (1, 2):
        codes = image[:, root + d, None].repeat(1, 2)
        codes[:, 0] = 5  # a sibling, which nothing may hear of
        above = torch.full((3, 2), 0 if d == 1 else 2)
        wide = session.expand(codes, torch.tensor([2 * d - 1, 2 * d]), above, d)
        assert wide.shape == (3, 2, 24)
        decoding.append(wide[:, 1])
    for d, logits in enumerate(decoding):
        at = (drafts[d].positions == root + d + 1).nonzero()[0, 0]
        torch.testing.assert_close(
            logits_at(drafts[d], 3, 2.0)[:, at], logits, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", PATHS)
def test_it_learns_and_what_is_saved_loads(name: str, tmp_path: Path) -> None:
    learner = learner_of(name)
    states = states_of(MODEL, learner, 8)
    before = measure_rates(learner, TARGET, [states], SAMPLING, 3)
    optimiser = torch.optim.AdamW(learner.net.parameters(), lr=1e-2)
    loss = LossConfig(guided=True, cfg=2.0, soft=1.0, regression=0.0, rollout=3)
    for step in range(20):
        drafter_loss(learner, TARGET, states, loss, step=step)[0].backward()
        optimiser.step()
        optimiser.zero_grad()
    after = measure_rates(learner, TARGET, [states], SAMPLING, 3)
    assert all(b > a + 0.1 for a, b in zip(before.overlap, after.overlap, strict=True))
    learner.save(tmp_path)
    kind, model = resolve(PATHS[name]), own_model()
    again = type(learner)(model, str(tmp_path))
    saved = measure_rates(again, TARGET, [states], SAMPLING, 3)
    assert saved.overlap == pytest.approx(after.overlap, abs=0.02)  # in bfloat16
    state: dict[str, Tensor] = kind(model, str(tmp_path)).net.state_dict()
    for key, value in again.net.state_dict().items():
        torch.testing.assert_close(state[key], value)
    with pytest.raises(DecoderError, match="has no drafter 'nothing'; it has: eagle"):
        kind(own_model(), "nothing")


def test_acceptance_is_one_for_a_drafter_that_knows_the_states() -> None:
    class Oracle(EagleLearner):
        def draft(self, states, roots, depth):  # type: ignore[no-untyped-def]
            return [
                Drafted(d.positions, states.hidden[:, TARGET.prefix - 1 + d.positions], d.head)
                for d in super().draft(states, roots, depth)
            ]

    oracle = Oracle(MODEL)
    rates = measure_rates(oracle, TARGET, [states_of(MODEL, oracle)], SAMPLING, 4)
    assert rates.overlap == pytest.approx([1.0] * 4)
    assert rates.agree == [1.0] * 4
    assert rates.chain_length() == pytest.approx(5.0)


# ---- GRIFFIN's mask -----------------------------------------------------------------------------


def test_a_chain_counts_until_its_code_is_none_of_the_likeliest() -> None:
    """Six codes of 4 kinds, top 2: at depth 1 the codes at positions 2 and 5 are missed, so the
    roots 1 and 4 are out; at depth 2, root 2 is."""
    codes = torch.tensor([[0, 1, 2, 3, 0, 1]])
    best = torch.tensor([[1, 0], [0, 3], [3, 1], [2, 0], [2, 3]])  # the top 2 for positions 1..5
    first = torch.zeros(1, 5, 4).scatter(2, best[None], torch.tensor([2.0, 1.0]).expand(1, 5, 2))
    counts = torch.ones(1, 6, dtype=torch.bool)
    counts = aligned(counts, first, codes, torch.arange(5), 0, 2)
    assert counts.tolist() == [[True, False, True, True, False, True]]
    second = torch.tensor([[[0.0, 0, 3, 1], [3.0, 0, 0, 1], [0.0, 3, 2, 1], [0.0, 2, 0, 1]]])
    counts = aligned(counts, second, codes, torch.arange(4), 1, 2)  # of positions 2..5
    assert counts.tolist() == [[True, False, False, True, False, True]]


def test_griffin_begins_as_eagle_and_where_all_counts_its_loss_is_that_of_eagle() -> None:
    griffin, eagle = GriffinLearner(MODEL, "eagle"), EagleLearner(MODEL, "eagle")
    states = states_of(MODEL, griffin)

    def loss(learner: Any, top: int, rollout: int = 3) -> float:
        config = LossConfig(guided=True, cfg=2.0, overlap=1.0, rollout=rollout, aligned=top)
        with torch.no_grad():
            return float(drafter_loss(learner, TARGET, states, config)[0])

    assert loss(griffin, 4) == pytest.approx(loss(eagle, 4), abs=1e-5)
    assert loss(griffin, 0) == pytest.approx(loss(griffin, 24), abs=1e-6)
    assert loss(griffin, 0) != pytest.approx(loss(griffin, 4), abs=1e-4)
    assert loss(griffin, 0, 1) == loss(griffin, 4, 1)  # the first depth counts everywhere


# ---- Medusa's heads, the example of docs/adding.md ------------------------------------------


def test_a_drafter_has_as_many_heads_as_it_was_trained_with(tmp_path: Path) -> None:
    learner = MedusaLearner(MODEL, heads=2)
    rates = measure_rates(learner, TARGET, [states_of(MODEL, learner)], SAMPLING, 4)
    assert len(rates.overlap) == 2  # as deep as it has heads
    learner.save(tmp_path)
    with pytest.raises(DecoderError, match=r"does not fit MedusaNet: missing .*heads\.2"):
        Medusa(MODEL, str(tmp_path), heads=3)
    with pytest.raises(DecoderError, match=r"heads: .* 1, found 0"):
        build_part(PartSpec(PATHS["Medusa"], {"heads": 0}), MODEL)


def test_an_exit_is_for_the_layers_that_it_was_trained_for(tmp_path: Path) -> None:
    learner = resolve(PATHS["Free"] + "Learner")(MODEL, layers=1)
    torch.nn.init.normal_(learner.net.outer.weight)
    learner.save(tmp_path)
    free = resolve(PATHS["Free"])
    assert str(free(MODEL, str(tmp_path), layers=1)) == "free(layers=1)"
    with pytest.raises(DecoderError, match=r"exit after 1 .* found drafter.layers=2; set"):
        free(MODEL, str(tmp_path), layers=2)
