"""Acceptance and loss of an EAGLE drafter in training."""

import pytest
import torch

from decoders.api import Sampling
from decoders.models.small import random_model
from decoders.propose.drafters.eagle import EagleLearner
from decoders.training.losses import (
    acceptance,
    logits_at,
)
from decoders.training.states import Images, States, target_states, transformer_of

MODEL = random_model(vocab=24, grid=3)
TARGET = transformer_of(MODEL)
SAMPLING = Sampling(cfg=2.0)


def some_states(batch: int = 3, paired: bool = True) -> States:
    text = MODEL.text.encode([f"p{i}" for i in range(batch)])
    codes = torch.randint(24, (batch, 9), generator=torch.Generator().manual_seed(1))
    drop = None if paired else torch.arange(batch) == 0
    return target_states(TARGET, Images(text, codes), drop)


def test_acceptance_is_one_for_a_drafter_that_knows_the_states() -> None:
    class Oracle(EagleLearner):
        def draft(self, states, roots, depth, noise=None):  # type: ignore[no-untyped-def]
            found = super().draft(states, roots, depth, noise)
            return [
                type(d)(d.places, states.hidden[:, TARGET.prefix - 1 + d.places], d.head, True)
                for d in found
            ]

    found = acceptance(Oracle(MODEL), TARGET, [some_states()], SAMPLING, 4)
    assert found.overlap == pytest.approx([1.0] * 4)
    assert found.agree == [1.0] * 4
    assert found.chain_length() == pytest.approx(5.0)
    assert found.chain_length(2) == pytest.approx(3.0)


def test_unguided_loss_compares_single_rows() -> None:
    learner = EagleLearner(MODEL, "eagle")
    single = some_states(paired=False)
    rows = learner.draft(single, torch.tensor([0]), 1)[0]
    assert logits_at(rows, 3, 2.0).shape == (3, 8, 24)
    torch.testing.assert_close(logits_at(rows, 3, 2.0), TARGET.logits(rows.hidden))
