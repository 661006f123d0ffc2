"""The training loop: killed and resumed, in parts, in several processes, it ends at one result."""

import csv
import itertools
import shutil
import socket
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
from decoders.propose.drafters.eagle_learner import EagleLearner
from decoders.training.losses import LossConfig
from decoders.training.processes import World, joined
from decoders.training.shards import DataConfig, Ring, StateMaker
from decoders.training.sources import Listed
from decoders.training.states import Images, transformer_of
from decoders.training.trainer import TrainConfig, Trainer

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


def trainer(
    folder: Path,
    config: TrainConfig = CONFIG,
    data: DataConfig | None = None,
    world: World | None = None,
    loss: LossConfig = LOSS,
) -> Trainer:
    """A fresh learner with the same start every time."""
    torch.manual_seed(0)
    learner = EagleLearner(MODEL)
    data = data or DataConfig(shard=6, ring=2, reuse=2, chunk=3)
    source = Listed(20, 0.1, 0, images_of)
    maker = StateMaker(transformer_of(MODEL), source, loss.guided, data)
    ring, target = Ring(maker, config.batch, 0, world), transformer_of(MODEL)
    return Trainer(learner, target, ring, SAMPLING, loss, config, folder)


def weights(made: Trainer) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in made.learner.net.state_dict().items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path]:
    """A training that was never stopped, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    made = trainer(folder)
    made.run()
    return made, folder


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_to_the_same_weights(whole, tmp_path: Path) -> None:
    cut = trainer(tmp_path / "cut")
    update = cut._step

    def killed(step: int, share: float) -> dict[str, Tensor]:
        if step == 5:
            raise Killed
        return update(step, share)

    cut._step = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        cut.run()
    resumed = trainer(tmp_path / "cut")
    done = resumed.run()
    for name, value in weights(whole[0]).items():
        assert torch.equal(value, weights(resumed)[name]), name
    assert [row["step"] for row in done.history] == [0, 1, 2, 3, 4, 5, 6]
    with (tmp_path / "cut" / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["held_overlap_2"]) == pytest.approx(done.acceptance.overlap[1])


def test_a_finished_training_is_not_repeated(whole) -> None:
    again = trainer(whole[1])
    assert again.run().steps == CONFIG.steps
    assert torch.equal(weights(whole[0])["fc.weight"], weights(again)["fc.weight"])


@pytest.mark.parametrize("micro", [1, 2])
def test_accumulation_equals_the_large_batch(whole, tmp_path: Path, micro: int) -> None:
    parts = trainer(tmp_path, replace(CONFIG, micro=micro))
    parts.run()
    for name, value in weights(whole[0]).items():
        torch.testing.assert_close(value, weights(parts)[name], rtol=1e-3, atol=1e-5)
    losses = [made.loop.history[-2]["loss"] for made in (whole[0], parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def in_process(rank: int, port: int, folder: str) -> None:
    import os

    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)
    }  # fmt: skip
    torch.set_num_threads(1)
    with joined(torch.device("cpu")) as world:
        made = trainer(Path(folder) / "two", world=world)
        made.run()
        torch.save(weights(made), f"{folder}/weights_{rank}.pt")


@pytest.mark.slow
def test_two_processes_have_one_drafter(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(in_process, (port, str(tmp_path)), nprocs=2)
    one, two = (torch.load(tmp_path / f"weights_{r}.pt", weights_only=True) for r in (0, 1))
    start = weights(trainer(tmp_path / "start"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["fc.weight"], start["fc.weight"])
    assert not list((tmp_path / "two").glob("*.partial"))


def test_what_does_not_go_together_is_refused(whole, tmp_path: Path) -> None:
    shutil.copytree(whole[1], tmp_path / "old")
    with pytest.raises(DecoderError, match=r"lr: 0\.01 there, 0\.02 here.*train\.resume=false"):
        trainer(tmp_path / "old", replace(CONFIG, lr=0.02)).run()
    trainer(tmp_path / "old", replace(CONFIG, lr=0.02, steps=1, resume=False)).run()
    path = tmp_path / "old" / "training.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DecoderError, match=r"training\.ckpt cannot be read"):
        trainer(tmp_path / "old").run()
    with pytest.raises(DecoderError, match=r"data\.shard=100 images .* the source has 18"):
        trainer(tmp_path, data=DataConfig(shard=100))
    with pytest.raises(DecoderError, match=r"train\.micro must divide the 4 images .* found 3"):
        trainer(tmp_path, replace(CONFIG, micro=3))


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with torch.no_grad():
        next(made.learner.net.parameters()).fill_(float("nan"))
    with pytest.raises(NumericalError, match="the loss is nan at step 0"):
        made.run()
    assert not (tmp_path / "training.ckpt").exists()


def test_deeper_drafts_join_when_they_are_due(tmp_path: Path) -> None:
    """At first each step trains depth 1 alone, so its curve has no deeper overlap."""
    config = replace(CONFIG, warmup=0)
    made = trainer(tmp_path, config, loss=replace(LOSS, unroll_from=0.5))
    rows = made.run().history[:6]
    assert ["overlap_2" in row for row in rows] == [False, False, False, True, True, True]


def test_the_budget_ends_the_schedule(tmp_path: Path, monkeypatch) -> None:
    clock = SimpleNamespace(monotonic=partial(next, itertools.count()))  # a second a look
    monkeypatch.setattr("decoders.training.loop.time", clock)
    made = trainer(tmp_path, replace(CONFIG, steps=100_000, budget_seconds=20))
    done = made.run()
    assert 5 <= done.steps <= 20
    assert made.optims[0].param_groups[0]["lr"] < 0.5 * CONFIG.lr
    assert done.history[-1]["step"] == done.steps


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (TrainConfig, {"schedule": "cosin"}, "train.schedule"),
        (TrainConfig, {"steps": 0}, "train.steps must be at least 1"),
        (LossConfig, {"soft": -1.0}, "loss.soft must be at least 0"),
        (LossConfig, {"regression": 0.0, "soft": 0.0}, "are all 0"),
        (LossConfig, {"rollout": 0}, "loss.rollout must be at least 1"),
        (LossConfig, {"decay": 0.0}, "loss.decay"),
        (DataConfig, {"ring": 0}, "data.ring must be at least 1"),
        (DataConfig, {"drop": 1.0}, "data.drop must be below 1"),
    ],
)
def test_impossible_settings_are_refused(kind: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        kind(**settings)
