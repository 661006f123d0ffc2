"""The recipe's families differ in one attribute; a short run stores weights, resumes, improves."""

import csv
import shutil
from pathlib import Path

import pytest

from metrics.scenes_clip import load
from metrics.train_clip import (
    train,
)

from .conftest import small_config


def read_curve(folder: Path) -> list[dict[str, float]]:
    with (folder / "clip.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


OPTIONS = {"batch": 16, "config": small_config(), "held_out": 16}


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("clip")
    return folder, train(folder, steps=21, **OPTIONS)


def test_a_short_run_learns_stores_and_resumes(short, tmp_path):
    folder, figures = short
    curve = read_curve(folder)
    assert len(curve) == 2
    assert figures["training"]["steps"] == 21
    assert set(figures["preference_by_attribute"]) >= {"colour", "relation"}
    assert load(folder).config.held_out == figures
    shutil.copytree(folder, tmp_path / "more")
    longer = train(tmp_path / "more", steps=41, **OPTIONS)
    assert longer["training"]["steps"] == 41
    assert longer["training"]["seconds"] > figures["training"]["seconds"]
    rows = read_curve(tmp_path / "more")
    assert rows[:2] == curve  # what was done is kept
    assert rows[-1]["loss"] < rows[0]["loss"]
