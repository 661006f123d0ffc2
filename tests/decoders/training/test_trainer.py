"""The trainer: killed and resumed, a training ends at one result."""

import csv
import itertools
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError, NumericalError, Sampling
from decoders.models.small import random_model
from decoders.propose.drafters.eagle import EagleLearner
from decoders.training.drafter import LossConfig, TrainingResult, train_drafter
from decoders.training.sources import Listed
from decoders.training.states import DataConfig, Images, StateData, transformer_of
from decoders.training.trainer import TrainConfig

SAMPLING = Sampling(cfg=2.0)
MODEL = random_model(vocab=24, grid=3)
LOSS = LossConfig(guided=True, cfg=2.0, rollout=2, roots=4)
CONFIG = TrainConfig(
    steps=6, batch=4, lr=1e-2, precision="float32", evaluate_every=0, held_out=2, save_every=2,
    log_every=1, depth=2, warmup=2,
)  # fmt: skip


def images_of(numbers: list[int]) -> Images:
    codes = [torch.randint(24, (9,), generator=torch.Generator().manual_seed(n)) for n in numbers]
    return Images(MODEL.text.encode([f"p{n}" for n in numbers]), torch.stack(codes))


def train(
    folder: Path, config: TrainConfig = CONFIG, loss: LossConfig = LOSS, killed_at: int = -1
) -> TrainingResult:
    """A fresh learner with the same start every time."""
    torch.manual_seed(0)
    states, source = DataConfig(shard=12, reuse=2, chunk=3), Listed(20, 0.1, 0, images_of)
    data = StateData(transformer_of(MODEL), source, loss.guided, states, config.batch)
    at = data.at

    def killed(step: int) -> Any:
        if step == killed_at:
            raise KeyboardInterrupt
        return at(step)

    data.at = killed  # type: ignore[method-assign]
    return train_drafter(EagleLearner(MODEL), data, SAMPLING, loss, config, folder)


def weights(done: TrainingResult) -> dict[str, Tensor]:
    return done.trainer.net.state_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingResult, Path]:
    """A training that was never stopped, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder), folder


def test_a_killed_training_goes_on_to_the_same_weights(whole, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, killed_at=5)
    done = train(tmp_path)
    for name, value in weights(whole[0]).items():
        assert torch.equal(value, weights(done)[name]), name
    assert [row["step"] for row in done.trainer.history] == [0, 1, 2, 3, 4, 5, 6]
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["held_overlap_2"]) == pytest.approx(done.acceptance.overlap[1])


def test_a_finished_training_is_not_repeated_and_a_longer_one_goes_on(whole, tmp_path) -> None:
    shutil.copytree(whole[1], tmp_path / "old")
    again = train(tmp_path / "old", killed_at=5)
    assert torch.equal(weights(whole[0])["fc.weight"], weights(again)["fc.weight"])
    longer = train(tmp_path / "old", replace(CONFIG, steps=8), killed_at=5)
    assert longer.trainer.step == 8


def test_what_does_not_go_together_is_refused(whole, tmp_path: Path) -> None:
    shutil.copytree(whole[1], tmp_path / "old")
    with pytest.raises(DecoderError, match=r"lr: 0\.01 there, 0\.02 here.*remove the file"):
        train(tmp_path / "old", replace(CONFIG, lr=0.02))
    path = tmp_path / "old" / "training.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DecoderError, match=r"training\.ckpt cannot be read.*start the training"):
        train(tmp_path / "old")


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path, monkeypatch) -> None:
    def loss(learner: Any, *_: Any) -> Any:
        return torch.nan * next(learner.net.parameters()).sum(), {}

    monkeypatch.setattr("decoders.training.drafter.drafter_loss", loss)
    with pytest.raises(NumericalError, match="the loss is nan at step 0"):
        train(tmp_path)
    assert not (tmp_path / "training.ckpt").exists()


def test_deeper_drafts_join_when_they_are_due(tmp_path: Path) -> None:
    """At first each step trains depth 1 alone, so its curve has no deeper overlap."""
    done = train(tmp_path, replace(CONFIG, warmup=0), loss=replace(LOSS, unroll_from=0.5))
    rows = done.trainer.history[:6]
    assert ["overlap_2" in row for row in rows] == [False, False, False, True, True, True]


def test_the_budget_ends_the_schedule(tmp_path: Path, monkeypatch) -> None:
    clock = SimpleNamespace(monotonic=partial(next, itertools.count()))  # a second a look
    monkeypatch.setattr("decoders.training.trainer.time", clock)
    trainer = train(tmp_path, replace(CONFIG, steps=100_000, budget_seconds=20)).trainer
    assert 5 <= trainer.step <= 20
    assert trainer.optims[0].param_groups[0]["lr"] < 0.5 * CONFIG.lr
    assert trainer.history[-1]["step"] == trainer.step


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (TrainConfig, {"schedule": "cosin"}, "train.schedule"),
        (TrainConfig, {"steps": 0}, "train.steps must be at least 1"),
        (LossConfig, {"soft": -1.0}, "loss.soft must be at least 0"),
        (LossConfig, {"regression": 0.0, "soft": 0.0}, "are all 0"),
        (LossConfig, {"rollout": 0}, "loss.rollout must be at least 1"),
        (LossConfig, {"decay": 0.0}, "loss.decay"),
        (DataConfig, {"shard": 0}, "data.shard must be at least 1"),
        (DataConfig, {"drop": 1.0}, "data.drop must be below 1"),
    ],
)
def test_impossible_settings_are_refused(kind: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        kind(**settings)
