"""The recipes of the embedded models: they learn, resume where they stopped, and write what
loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bench.commands.train import cmd_train
from bench.config.hydra_edge import composed
from bench.errors import ConfigError
from decoders.api import DecoderError
from decoders.errors import plugin_line
from decoders.models.llamagen_vq import VQConfig
from decoders.models.nets.transformer import Transformer, TransformerConfig
from decoders.models.prompts import WordEncoder, WordEncoderConfig
from decoders.propose.drafters.dspark import DSpark
from decoders.propose.drafters.eagle3 import Eagle3
from decoders.propose.drafters.medusa import Medusa
from decoders.tiny import bundle
from decoders.tiny.scenes import ObjectSpec, SceneSpec, vocabulary
from decoders.training.trainer import TrainConfig
from recipes import stages, target, vq

CONFIG = TrainConfig(steps=6, batch=2, lr=1e-2, muon_lr=1e-2, evaluate_every=0, held_out=4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes at toy size: a step takes milliseconds."""
    shape = VQConfig(codes=64, dim=4, channels=8, ch_mult=(1, 1, 2), res_blocks=1, z_channels=8)
    net = TransformerConfig(
        vocab=64, width=32, layers=2, heads=2, ffn=64, grid=16, prefix=32, text_width=16,
        prefix_rope="identity",
    )  # fmt: skip
    monkeypatch.setattr(vq, "VQ_CONFIG", shape)
    monkeypatch.setattr(vq, "UNQUANTISED_STEPS", 2)
    monkeypatch.setattr(target, "TARGET_CONFIG", net)
    monkeypatch.setattr(stages, "SMALL", {})


def make(chosen: list[str], steps: int, work: Path, weights: Path) -> None:
    """The recipe with small batches."""
    recipe = composed("recipe_config", ["recipe=tiny"])
    for name, config in recipe["train"].items():
        held_out = 64 if name == "vq" else 4
        recipe["train"][name] = config | {"batch": 2, "held_out": held_out}
    for part in recipe["drafters"].values():
        part["data"] |= {"shard": 4}
    stages.make(
        chosen, recipe["drafters"], train=recipe["train"], steps=steps, work=work, weights=weights
    )


def reader() -> tuple[WordEncoder, Any]:
    """An untrained text encoder, and the caption network of its target."""
    cfg = target.TARGET_CONFIG
    words = WordEncoderConfig(tuple(vocabulary()), width=cfg.text_width, prefix=cfg.prefix)
    return WordEncoder(words), Transformer(cfg).cls_embedding


def test_make_writes_a_model_that_loads(small: None, tmp_path: Path) -> None:
    """Drafters and further targets are stages of their own."""
    work, weights = tmp_path / "work", tmp_path / "weights"
    where: dict[str, Any] = {"dtype": "float32", "checkpoint": str(weights)}
    make(["vq", "target", "drafter", "eagle3", "dspark", "medusa"], 2, work, weights)
    model = bundle.load(**where)
    assert model.target.vocab_size == 64
    assert model.drafters.keys() == {"eagle", "eagle3", "dspark", "medusa"}
    assert DSpark(model, "dspark").net is model.drafters["dspark"]
    assert Medusa(model, "medusa").net is model.drafters["medusa"]
    assert Eagle3(model, "eagle3").net is model.drafters["eagle3"]
    card = json.loads((weights / bundle.CARD_FILE).read_text())
    assert {name: entry["sha256"] for name, entry in card.items()} == model.weights_sha256
    shas = {part: card[part]["sha256"] for part in ("vq", "text", "target")}
    assert card["eagle"]["trained_with"] == card["dspark"]["trained_with"] == shas
    assert card["target"]["trained_with"] == {part: shas[part] for part in ("vq", "text")}
    assert card["vq"]["figures"]["images"] == card["target"]["figures"]["images"] == 2 * 2
    assert 0 <= card["target"]["figures"]["valid_naming"] <= 1
    figures = card["eagle"]["figures"]
    assert 0 < figures["valid_overlap_1"] < 1 < figures["valid_chain_length"] < 9
    assert (work / "target" / "curve.csv").exists()

    make(["target"], 3, work, weights)  # it goes on
    with pytest.raises(DecoderError, match=r"eagle was trained with t.*stages=.drafter."):
        bundle.load(**where)
    others = [name for name in bundle.TARGETS if name != "plain"]
    make(list(bundle.TARGETS), 2, work, weights)
    card = json.loads((weights / bundle.CARD_FILE).read_text())
    assert card["coral"]["figures"]["valid_nats_refined"] > 0 < card["par"]["figures"]["valid_nats"]
    model = bundle.load(**where, target="plain", targets=others, drafters=False)
    assert not model.drafters and list(model.targets) == others and model.sampling.cfg == 3
    shas = {name: card[name]["sha256"] for name in bundle.TARGETS}
    assert card["flash"]["trained_with"]["plain"] == shas["plain"]
    assert shas.items() <= model.weights_sha256.items()


def test_flashar_begins_as_the_plain_target_whose_weights_stay_at_first(
    small: None, tmp_path: Path
) -> None:
    def weights(name: str) -> dict[str, Any]:
        return load_file(tmp_path / f"{name}.safetensors")

    make(["vq", "target", "plain"], 1, tmp_path / "work", tmp_path)
    plain = weights("plain")
    for steps, begun in ((1, True), (6, False)):
        make(["flash"], steps, tmp_path / f"work{steps}", tmp_path)
        flash = weights("flash")
        assert all(torch.equal(flash[name], tensor) for name, tensor in plain.items()) == begun
        assert not torch.equal(flash["vertical.output.weight"], plain["output.weight"])


def test_a_larger_target_stands_behind_the_shipped_tokenizer(tmp_path: Path) -> None:
    """The recipe for a GPU, in its smallest form and resumed once, by its own command."""
    words = [
        "recipe=large", f"weights={tmp_path}", f"work={tmp_path}", "device=cpu",
        "shape={width: 64, layers: 2, heads: 2, ffn: 96}", "drafters.drafter.data.shard=4",
        *(f"train.{name}.batch=2" for name in ("reading", "target", "drafter")),
        *(f"train.{name}.held_out=4" for name in ("reading", "target", "drafter")),
    ]  # fmt: skip
    assert cmd_train([*words, "stages=[target]", "steps=1"]) == 0
    assert cmd_train([*words, "steps=2"]) == 0
    card = json.loads((tmp_path / bundle.CARD_FILE).read_text())
    shipped = json.loads((bundle.WEIGHTS_FOLDER / bundle.CARD_FILE).read_text())
    assert card["vq"] == shipped["vq"]
    assert card["target"]["config"]["width"] == 64 and card["target"]["figures"]["steps"] == 2
    model = bundle.load(dtype="float32", checkpoint=str(tmp_path))
    assert len(model.target.layers) == 2 and model.drafters.keys() == {"eagle"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recipe=large", "shape.widht=3"], "widht"),
        (["recipe=tin"], "'tiny'"),
        (["recipe=tiny", "stepz=3"], "unknown setting 'stepz'; did you mean 'steps'"),
        (["recipe=tiny", "train.steps=3"], "unknown setting 'train.steps'"),
        (["recipe=tiny", "steps=many"], "^steps: .* integer, found 'many'"),
        (["recipe=tiny", "train.vq.lr=-1"], r"^train\.vq\.lr: .* 0, found -1"),
        (["recipe=tiny", "stages=[vqq]"], "unknown stage 'vqq'; did you mean 'vq'"),
    ],
)
def test_bad_settings_are_refused(words: list[str], says: str) -> None:
    with pytest.raises((ConfigError, DecoderError), match=says):
        cmd_train(words)


def test_no_line_of_a_recipe_is_taken_for_a_plug_in_s() -> None:
    work = {"work": Path("w"), "weights": Path("w"), "train": {}}
    with pytest.raises(DecoderError, match="stages is empty") as refused:
        stages.make([], {name: {} for name in stages.LEARNERS}, **work)
    assert plugin_line(refused.value).startswith(__file__)


def test_a_caption_is_answered_by_where_objects_stand() -> None:
    one = ObjectSpec("small", "smooth", "red", "ring")
    two = ObjectSpec("large", "cloudy", "blue", "star")
    left = SceneSpec((one, two), "left", "plain", "grey", "above")
    right = SceneSpec((two, one), "right", "plain", "grey", "above")
    single = SceneSpec((one,), None, "plain", "grey", "above")
    said = dict(zip(target.ANSWERS, target.answers("lit from above", left), strict=True))
    assert list(said.values()) == target.answers("lit from above", right)
    assert target.ANSWERS["near shape"][said["near shape"]] == "ring"
    assert target.ANSWERS["light"][said["light"]] == "above"
    alone = dict(zip(target.ANSWERS, target.answers("a ring", single), strict=True))
    assert all(alone[name] == 0 for name in alone if name.startswith(("far", "axis", "light")))


def test_the_encoder_learns_to_read(small: None, tmp_path: Path) -> None:
    parts = reader()
    config = replace(CONFIG, steps=60, batch=8, muon_lr=0.02, lr=3e-3, clip_value=0, held_out=64)
    before = target.learn_to_read(*parts, replace(config, budget_seconds=1e-9), tmp_path / "no")
    assert target.learn_to_read(*parts, config, tmp_path / "yes") > before + 0.1
