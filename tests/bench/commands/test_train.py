"""`bench train`: a training from the command line leaves a drafter that loads, and its curves."""

import csv
import json
from pathlib import Path

import pytest
import torch

from bench.commands.train import DRAFTER, RECORD, cmd_train
from decoders.api import ImageModel
from decoders.compose import PartSpec, build_part
from decoders.models.loading.weights import dtype_of
from decoders.models.random_weights import random_model
from decoders.training.states import ImageList, Images
from tests.bench.fakes import SEARCHPATH

SMALL = [
    SEARCHPATH, "model=random24",
    "backend.dtype=float32", "backend.threads=1",
    "data=random24", "data.held_out=0.2", "data.shard=8",
    "train.steps=4", "train.batch=4", "train.warmup=1", "train.precision=float32",
    "train.held_out=2", "train.evaluate_every=2", "train.log_every=1", "train.depth=3",
]  # fmt: skip


def load_random(device: str, dtype: str) -> ImageModel:
    """What `model=random24` of tests/bench/conf loads."""
    return random_model(vocab=24, grid=3, device=device, dtype=dtype_of(dtype))


def random_codes(model: ImageModel, held_out: float, seed: int) -> ImageList:
    """What `data=random24` of tests/bench/conf draws: 24 images of random codes."""
    codes = torch.randint(24, (24, model.target.length), generator=torch.Generator().manual_seed(1))
    return ImageList(
        24, held_out, seed, lambda n: Images(model.text.encode([f"p{i}" for i in n]), codes[n])
    )


def trained(folder: Path, *words: str) -> int:
    return cmd_train([*SMALL, f"run_dir={folder}", *words])


@pytest.mark.parametrize(
    ("drafter", "words", "settings"),
    [
        ("eagle", ["loss=unrolled", "loss.roots=3"], {}),
        ("medusa", ["drafter.heads=3", "loss=unrolled"], {"heads": 3}),
    ],
)
def test_a_training_leaves_a_drafter_that_loads(drafter, words, settings, tmp_path, capsys):
    assert trained(tmp_path, f"drafter={drafter}", *words) == 0
    out = capsys.readouterr().out
    assert f"drafter.checkpoint={tmp_path / DRAFTER}" in out
    assert "depth" in out and "accepted" in out
    record = json.loads((tmp_path / RECORD).read_text())
    assert record["steps"] == 4
    assert 0 < record["overlap_3"] < 1
    with (tmp_path / "curve.csv").open() as file:
        curve = list(csv.DictReader(file))
    assert {"step", "loss", "overlap_1", "held_overlap_3", "held_agree_1"} <= curve[0].keys()
    target = f"decoders.propose.drafters.{drafter}.{drafter.capitalize()}"
    spec = PartSpec(target, {"checkpoint": str(tmp_path / DRAFTER), **settings})
    net = build_part(spec, random_model(vocab=24, grid=3)).net
    assert all(weights.isfinite().all() for weights in net.parameters())
