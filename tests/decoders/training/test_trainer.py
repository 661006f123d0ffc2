"""Data of a training: where codes come from, and the shards of the target's states. The trainer."""

import csv
import itertools
import json
import shutil
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from decoders.api import DecoderError, NumericalError, Sampling
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.nets.transformer import transformer_of
from decoders.models.pictures import PictureDecoder, VQTokenizer
from decoders.models.random_weights import random_model
from decoders.propose.drafters.eagle import EagleLearner
from decoders.tiny.bundle import Scenes
from decoders.training.drafter import LossConfig, TrainingResult, drafter_loss, train_drafter
from decoders.training.states import (
    DataConfig,
    ImageList,
    Images,
    StateData,
    pictures,
    target_states,
)
from decoders.training.trainer import TrainConfig

MODEL = random_model(vocab=24, grid=3)
TARGET = transformer_of(MODEL)
COMPUTED: list[int] = []


def images_of(numbers: list[int]) -> Images:
    """Image n begins with the codes of n in base 24, so that it can be told."""
    COMPUTED.extend(numbers)
    codes = torch.tensor([[n // 24, n % 24] + [0] * 7 for n in numbers])
    return Images(MODEL.text.encode([f"p{n}" for n in numbers]), codes)


def data(count: int = 40, paired: bool = True, batch: int = 4, **settings: object) -> StateData:
    chosen: dict[str, object] = {"shard": 8, "reuse": 2.0, "chunk": 3} | settings
    config = DataConfig(**chosen)  # type: ignore[arg-type]
    return StateData(TARGET, ImageList(count, 0.1, 0, images_of), paired, config, batch)


def drawn(states: StateData, step: int) -> list[int]:
    """The numbers of the images of a step's batch."""
    codes = states.at(step).images.codes
    return (24 * codes[:, 0] + codes[:, 1]).tolist()


def with_vq() -> object:
    shape = VQConfig(
        codes=24, dim=4, channels=8, ch_mult=(1, 2), res_blocks=1, z_channels=8, grid=4
    )
    torch.manual_seed(0)
    model = random_model(vocab=24, grid=4)
    return replace(model, tokenizer=VQTokenizer(LlamaGenVQ(shape).eval().requires_grad_(False)))


def test_pictures_of_a_folder_become_codes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = []
    for i, size in enumerate([(8, 8), (24, 12), (9, 30)]):
        array = random.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(array).save(tmp_path / f"{i}.png")
        rows.append({"image": f"{i}.png", "caption": f"caption {i}"})
    (tmp_path / "captions.json").write_text(json.dumps(rows))
    model = with_vq()
    one = pictures(model, str(tmp_path), str(tmp_path / "captions.json"), 8, 0.3)  # type: ignore
    assert one.images("train", range(2)).codes.shape == (2, 16)
    exact = next(k for k, n in enumerate(one.parts["train"] + one.parts["valid"]) if n == 0)
    array = np.asarray(Image.open(tmp_path / "0.png"), dtype=np.float32) / 255
    picture = torch.from_numpy(array).permute(2, 0, 1)[None]
    expected = model.tokenizer.vq.encode(picture)  # type: ignore[attr-defined]
    split, at = ("train", exact) if exact < 2 else ("valid", exact - 2)
    assert torch.equal(one.images(split, [at]).codes, expected)


def test_bad_captions_and_pictures_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    path = tmp_path / "captions.json"
    for text, says in (
        (None, r"does not exist; set data\.captions"),
        ('[{"image": "x.png", "caption": "a"}]', r"row 1 names .*x\.png"),
        ('[{"image": "0.png"}]', "row 1 needs `image` and `caption`"),
        ('[{"image": "._0.png", "caption": "a"}]', "a dot are of hidden files"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(DecoderError, match=says):
            pictures(MODEL, str(tmp_path), str(path), 8)
    only_decodes = VQTokenizer(PictureDecoder(torch.nn.Identity(), 4, torch.zeros(24, 4)))
    for model in (MODEL, replace(MODEL, tokenizer=only_decodes)):
        with pytest.raises(DecoderError, match=r"cannot encode pictures.*data\._target_="):
            Scenes(model).images("train", [0])
    with pytest.raises(DecoderError, match="pictures of 64 pixels are 1024 codes"):
        Scenes(with_vq()).images("train", [0])  # type: ignore[arg-type]


def test_paired_states_are_those_of_decoding_with_and_without_the_caption() -> None:
    images = images_of([1, 30])
    states = target_states(TARGET, images)
    assert states.copies == 2
    cache = TARGET.new_cache(4, TARGET.prefix)
    prefix = TARGET.prefill(images.text, 2, cache)
    torch.testing.assert_close(states.hidden[:, : TARGET.prefix], prefix, rtol=1e-4, atol=1e-5)
    single = target_states(TARGET, images, torch.tensor([True, False]))
    assert single.copies == 1
    torch.testing.assert_close(single.hidden[0], states.hidden[2])
    torch.testing.assert_close(single.hidden[1], states.hidden[1])


def test_a_tenth_of_single_rows_loses_its_caption_and_held_out_ones_none() -> None:
    states = data(count=220, paired=False, shard=180, batch=160, drop=0.1)
    states.held_paired = False
    assert 4 <= int(states.at(0).drop.sum()) <= 36
    assert not states.states("valid", range(20)).drop.any()


def test_a_batch_is_a_function_of_the_step() -> None:
    through = data()
    history = [drawn(through, step) for step in range(10)]
    for step in (9, 4):  # a run that starts in the middle
        assert drawn(data(), step) == history[step]
    states = through.at(9)
    torch.testing.assert_close(states.hidden, target_states(TARGET, states.images).hidden)


def test_images_are_used_reuse_times_and_computed_once() -> None:
    states = data(count=420, shard=12, reuse=3.0)
    COMPUTED.clear()
    counts = Counter(n for step in range(270) for n in drawn(states, step))
    assert max(Counter(COMPUTED).values()) == 1
    assert set(counts.values()) == {3}
    assert states.images(270) == len(COMPUTED) == len(counts)


def test_a_finite_source_is_gone_through_again() -> None:
    states = data(count=14, shard=8, reuse=1.0)  # 13 to train on
    assert len({n for step in range(4) for n in drawn(states, step)}) == 13
    held = data(reuse=1.0)
    codes = held.states("valid", range(4)).images.codes
    never = set((24 * codes[:, 0] + codes[:, 1]).tolist())
    assert not never & {n for step in range(18) for n in drawn(held, step)}


# ---- the trainer: killed and resumed, a training ends at one result ------------------------------

SAMPLING = Sampling(cfg=2.0)
LOSS = LossConfig(guided=True, cfg=2.0, rollout=2, roots=4)
CONFIG = TrainConfig(
    steps=6, batch=4, lr=1e-2, precision="float32", evaluate_every=0, held_out=2, save_minutes=0,
    log_every=1, depth=2, warmup=2,
)  # fmt: skip


def train(
    folder: Path, config: TrainConfig = CONFIG, loss: LossConfig = LOSS, killed_at: int = -1
) -> TrainingResult:
    """A fresh learner with the same start every time."""
    torch.manual_seed(0)
    at, states = StateData.at, DataConfig(shard=12, reuse=2.0, chunk=3)

    def killed(self: StateData, step: int) -> Any:
        if step == killed_at:
            raise KeyboardInterrupt
        return at(self, step)

    given = TARGET, ImageList(20, 0.1, 0, images_of), SAMPLING, loss, states, config, folder
    with mock.patch.object(StateData, "at", killed):
        return train_drafter(EagleLearner(MODEL), *given)


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


def test_an_interrupt_that_a_callback_drops_stops_the_training(tmp_path: Path, monkeypatch) -> None:
    """As in a finaliser, or a callback of torch."""

    def loss(*given: Any) -> Any:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return drafter_loss(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("decoders.training.drafter.drafter_loss", loss)
        train(tmp_path)
    assert torch.load(tmp_path / "training.ckpt")["step"] == 1
    assert train(tmp_path).trainer.step == CONFIG.steps


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
        (TrainConfig, {"seed": 2**63 - 1}, "train.seed: .* 1099511627776, found"),
        (LossConfig, {"regression": 0.0, "soft": 0.0}, "are all 0"),
        (LossConfig, {"decay": 0.0}, "loss.decay"),
    ],
)
def test_impossible_settings_are_refused(kind: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        kind(**settings)


@pytest.mark.parametrize("save_minutes", [0.0, 1.0], ids=["every step", "at the end"])
def test_weights_that_are_not_finite_replace_no_checkpoint(tmp_path, monkeypatch, save_minutes):
    """The loss of the step that breaks them is finite, and its row of the curve is sound."""
    config = replace(CONFIG, save_minutes=save_minutes, evaluate_every=0, log_every=100)
    train(tmp_path, replace(config, steps=2))
    sound = (tmp_path / "training.ckpt").read_bytes()

    def loss(learner: Any, *_: Any) -> Any:
        return sum(0 * p.sum() for p in learner.net.parameters()).sqrt(), {}

    monkeypatch.setattr("decoders.training.drafter.drafter_loss", loss)
    with pytest.raises(NumericalError, match=r"(weight|figure) .* is nan at step .*lower train"):
        train(tmp_path, replace(config, steps=3))
    assert (tmp_path / "training.ckpt").read_bytes() == sound
