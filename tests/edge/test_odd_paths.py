"""A folder whose name has a byte that is no UTF-8, as old archives and some mounts have."""

import os
import shutil
from pathlib import Path

import pytest

from bench.analyse.analyse import load
from bench.commands.evaluate import EvaluateConfig, write_csv
from metrics.networks import Weights
from metrics.papers import Measurement
from metrics.stats import Interval
from tests.bench.report.synthetic import write_run


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    return folder


def test_a_run_is_read_by_its_absolute_path(odd):
    write_run(odd.parent / "run", prompts=2)
    shutil.move(odd.parent / "run", odd / "run")
    assert {entry.name for entry in load(odd / "run").entries} >= {"ar", "lantern"}


def test_the_figures_of_its_pictures_are_written_with_the_name_escaped(odd, tmp_path):
    weights = Weights(tmp_path / "clip.pt", "0" * 64)
    figure = Measurement(
        "clip", "score", "CLIP é", "", Interval(30.0, 29.0, 31.0), 4, 0, "", weights
    )
    write_csv(tmp_path / "x.csv", EvaluateConfig(images=odd), [figure], "cpu")
    text = (tmp_path / "x.csv").read_text(encoding="utf-8")
    assert "caf\\udce9" in text and "CLIP é" in text
