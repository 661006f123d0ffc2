"""A short run of the recipe stores weights, resumes and improves."""

import csv
from dataclasses import replace
from pathlib import Path

from decoders.training.trainer import CURVE, TrainConfig
from metrics.scenes_clip import load
from metrics.train_clip import train

from .conftest import small_config


def read_curve(folder: Path) -> list[dict[str, float]]:
    with (folder / CURVE).open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


CONFIG = TrainConfig(steps=21, batch=16, lr=2e-3, clip_value=0, clip_norm=1, held_out=16)


def test_a_short_run_learns_stores_and_resumes(tmp_path):
    figures = train(CONFIG, tmp_path, tmp_path, shape=small_config())
    curve = read_curve(tmp_path)
    assert [row["step"] for row in curve] == [0, 20, 21]
    assert figures["steps"] == 21
    assert figures.keys() >= {"preference_colour", "preference_relation"}
    assert load(tmp_path).config.held_out == figures
    longer = train(replace(CONFIG, steps=41), tmp_path, tmp_path, shape=small_config())
    assert longer["steps"] == 41 and longer["seconds"] > figures["seconds"]
    rows = read_curve(tmp_path)
    assert rows[:3] == curve  # what was done is kept
    assert rows[-2]["loss"] < rows[0]["loss"]
