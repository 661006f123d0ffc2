"""The recipes of the embedded models: they learn, resume where they stopped, and write what
loads."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.commands.train import cmd_train
from bench.data.errors import ConfigError
from decoders.api import DecoderError
from decoders.models.transformer import TransformerConfig
from decoders.models.vq.llamagen_vq import VQConfig
from decoders.propose.drafters.eagle3 import Eagle3
from decoders.tiny import bundle
from decoders.tiny.recipes import drafter, grouped, reading, target, vq
from decoders.tiny.recipes.card import CARD_NAME
from decoders.tiny.recipes.stages import make
from decoders.tiny.scenes import ObjectSpec, SceneSpec
from decoders.tiny.targets import TARGETS
from decoders.training.loop import Loop, fit
from decoders.training.shards import DataConfig

LEARN = reading.learn  # as the recipe has it: `small` shortens it


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes at toy size: a step takes milliseconds."""
    shape = VQConfig(codes=64, dim=4, channels=8, ch_mult=(1, 1, 2), res_blocks=1, z_channels=8)
    net = TransformerConfig(
        vocab=64, width=32, layers=2, heads=2, ffn=64, grid=16, prefix=32, text_width=16,
        prefix_rope="identity",
    )  # fmt: skip
    for module, name, value in (
        (vq, "CONFIG", shape),
        (vq, "BATCH", 2),
        (vq, "WARMUP", 2),
        (target, "CONFIG", net),
        (target, "BATCH", 2),
        (target, "NAMED", 1),
        (grouped, "HELD_OUT", (2, 4)),
        (grouped, "SIZE", {}),
        (reading, "BATCH", 2),
        (reading, "HELD_OUT", 8),
        (vq, "held_out", functools.partial(vq.held_out, count=64)),
    ):
        monkeypatch.setattr(module, name, value)
    real = target.held_out
    monkeypatch.setattr(target, "held_out", lambda *given: real(*given[:3], 4))
    monkeypatch.setattr(reading, "learn", functools.partial(LEARN, steps=2))
    for name in ("TRAIN", "TRAIN_3"):
        monkeypatch.setattr(drafter, name, replace(getattr(drafter, name), batch=2, held_out=2))
    for name in ("DATA", "SHORT"):
        monkeypatch.setattr(drafter, name, DataConfig(shard=4, ring=2, reuse=2))


def test_make_writes_a_model_that_loads(small: None, tmp_path: Path) -> None:
    where = {"work": str(tmp_path / "work"), "weights": str(tmp_path / "weights")}
    make(["vq"], steps=4, **where)
    make(["target", "drafter", "eagle3"], steps=2, **where)
    model = bundle.load(dtype="float32", checkpoint=where["weights"])
    assert model.target.vocab_size == 64
    assert model.drafters.keys() == {"eagle", "eagle3"}
    assert Eagle3(model, "eagle3").net is model.drafters["eagle3"]
    card = json.loads((tmp_path / "weights" / bundle.CARD).read_text())
    assert {name: entry["sha256"] for name, entry in card.items()} == model.weights_sha256
    shas = {part: card[part]["sha256"] for part in ("vq", "text", "target")}
    assert card["eagle"]["trained_with"] == card["eagle3"]["trained_with"] == shas
    assert card["target"]["trained_with"] == {part: shas[part] for part in ("vq", "text")}
    assert card["vq"]["figures"]["images"] == 4 * 2 and card["target"]["figures"]["images"] == 2 * 2
    assert 0 <= card["target"]["figures"]["valid_naming"] <= 1
    assert card["vq"]["figures"]["valid_psnr_db"] > 0
    figures = card["eagle"]["figures"]
    assert 0 < figures["valid_overlap"] == figures["valid_overlap_1"] < 1
    assert figures.keys() >= {f"valid_{kind}_8" for kind in ("overlap", "agree")}
    assert 1 < figures["valid_chain_length"] < drafter.TRAIN.depth + 1
    assert (tmp_path / "work" / "target" / "target.csv").exists()
    assert "| file | `eagle3.safetensors`" in (tmp_path / "weights" / CARD_NAME).read_text()

    make(["target"], steps=3, **where)  # it goes on
    with pytest.raises(DecoderError, match=r"eagle was trained with t.*stages=.drafter."):
        bundle.load(dtype="float32", checkpoint=where["weights"])
    bundle.load(dtype="float32", checkpoint=where["weights"], drafters=False)
    make(["drafter", "eagle3"], steps=1, **where | {"work": str(tmp_path / "anew")})
    bundle.load(dtype="float32", checkpoint=where["weights"])


def test_other_targets_are_stages_of_their_own(small: None, tmp_path: Path) -> None:
    where = {"work": str(tmp_path / "work"), "weights": str(tmp_path / "weights")}
    make(["vq", "target"], steps=1, **where)
    make(list(TARGETS), steps=2, **where)
    card = json.loads((tmp_path / "weights" / bundle.CARD).read_text())
    assert card["coral"]["figures"]["images"] == 2 * 2
    assert card["coral"]["figures"]["valid_nats_refined"] > 0 < card["par"]["figures"]["valid_nats"]
    others = [name for name in TARGETS if name != "plain"]
    model = bundle.load(
        dtype="float32", checkpoint=where["weights"], target="plain", targets=others
    )
    assert not model.drafters and list(model.targets) == others and model.sampling.cfg == 3
    assert {name: card[name]["sha256"] for name in TARGETS}.items() <= model.weights_sha256.items()
    card["par"]["trained_with"]["text"] = "0" * 64
    (tmp_path / "weights" / bundle.CARD).write_text(json.dumps(card))
    with pytest.raises(DecoderError, match=r"par was trained with text 0+, .*stages=.par."):
        bundle.load(dtype="float32", checkpoint=where["weights"], target="plain", targets=["par"])


@pytest.mark.parametrize("stage", ["vq", "coral"])
def test_an_interrupted_training_equals_an_uninterrupted_one(
    small: None, tmp_path: Path, stage: str
) -> None:
    class Stop(Exception):
        pass

    recipe, made, offset, train = vq, "weighted_images_of", 0, vq.train
    if stage == "coral":
        models = target.LlamaGenVQ(vq.CONFIG), target.TextToCodes(target.CONFIG).text
        train = functools.partial(grouped.train, stage, *(m.eval() for m in models))
        recipe, made, offset = target, "batch_of", target.OFFSET
    whole, _ = train(tmp_path / "whole", steps=6)
    original = getattr(recipe, made)

    def stopping(*given: Any) -> Any:
        if "train" in given and offset + 5 * recipe.BATCH in given:
            raise Stop
        return original(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, made, stopping)
        every = {"save_every": 2}
        for module in (vq, grouped):
            patch.setattr(module, "Loop", lambda *a, **kw: Loop(*a, **kw | every))
        with pytest.raises(Stop):
            train(tmp_path / "cut", steps=6)
    assert done_of(tmp_path / "cut" / f"{stage}.ckpt") == 4
    resumed, _ = train(tmp_path / "cut", steps=6)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def done_of(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["step"])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("budget", [None, 3600.0])
def test_the_schedule_ends_with_the_steps_where_the_budget_is_not_spent(
    tmp_path: Path, budget: float | None, ahead: bool
) -> None:
    module = torch.nn.Linear(2, 1)
    loop = Loop("x", tmp_path, steps=40, warmup=2, budget_seconds=budget)
    seen: list[int] = []
    shares: list[float] = []

    def loss_of(step: int, share: float) -> tuple[torch.Tensor, dict[str, float]]:
        seen.append(step)
        shares.append(share)
        return module(torch.ones(2)).square().sum(), {}

    optims = vq.optimisers(module, 1e-3, 0.0, 0.0)
    fit(loop, module, optims, lambda step: step, loss_of, ahead=ahead)
    assert seen == list(range(40))
    assert shares[-1] == pytest.approx(39 / 40)
    assert loop.done == 40


def test_a_spent_budget_ends_a_training_after_a_whole_warm_up(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 1)
    loop = Loop("x", tmp_path, steps=10**9, warmup=5, budget_seconds=0.3)
    optims = vq.optimisers(module, 1.0, 0.0, 0.0)
    rates: list[float] = []

    def loss_of(step: int, share: float) -> tuple[torch.Tensor, dict[str, float]]:
        rates.append(optims[0].param_groups[0]["lr"])
        return module(torch.ones(2)).square().sum(), {}

    fit(loop, module, optims, lambda step: step, loss_of, ahead=True)
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert len(rates) == loop.done == done_of(loop.checkpoint) < 10**9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recipe=tin"], "'tiny'"),
        (["recipe=tiny", "stepz=3"], "unknown setting 'stepz'; did you mean 'steps'"),
        (["recipe=tiny", "train.steps=3"], "unknown setting 'train.steps'"),
        (["recipe=tiny", "steps=many"], "steps must be an integer or null"),
        (["recipe=clip", "overwrite=maybe"], "overwrite must be true or false"),
        (["recipe=tiny", "stages=[vqq]"], "unknown stage 'vqq'; did you mean 'vq'"),
    ],
)
def test_bad_settings_are_refused(words: list[str], says: str) -> None:
    with pytest.raises((ConfigError, DecoderError), match=says):
        cmd_train(words)


def test_the_shipped_weights_are_written_over_on_request_alone(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(bundle, "WEIGHTS", shipped)
    words = [f"weights={shipped}", f"work={tmp_path / 'work'}", "steps=1"]
    for recipe in (["recipe=tiny", "stages=[vq]"], ["recipe=clip"]):
        with pytest.raises(DecoderError, match=r"weights=DIR.*overwrite=true"):
            cmd_train([*recipe, *words])
    assert not [*shipped.iterdir()]
    cmd_train(["recipe=tiny", "stages=[vq]", *words, "overwrite=true"])
    assert (shipped / "vq.safetensors").is_file()


def test_a_caption_is_answered_by_where_objects_stand() -> None:
    one = ObjectSpec("small", "smooth", "red", "ring")
    two = ObjectSpec("large", "cloudy", "blue", "star")
    left = SceneSpec((one, two), "left", "plain", "grey", "above")
    right = SceneSpec((two, one), "right", "plain", "grey", "above")
    single = SceneSpec((one,), None, "plain", "grey", "above")
    said = dict(zip(reading.ANSWERS, reading.answers("lit from above", left), strict=True))
    assert list(said.values()) == reading.answers("lit from above", right)
    assert reading.ANSWERS["near shape"][said["near shape"]] == "ring"
    assert reading.ANSWERS["light"][said["light"]] == "above"
    alone = dict(zip(reading.ANSWERS, reading.answers("a ring", single), strict=True))
    assert all(alone[name] == 0 for name in alone if name.startswith(("far", "axis", "light")))


def test_the_encoder_learns_to_read(small: None) -> None:
    model = target.TextToCodes(target.CONFIG)
    parts = model.text, model.target.cls_embedding
    before = LEARN(*parts, steps=0)
    assert LEARN(*parts, steps=60) > before + 0.1
