"""`bench predict`: a run's speed-ups beside what its acceptance and separately measured costs give,
and runs that it cannot explain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.__main__ import main
from bench.speed.costs import sizes
from bench.speed.model import codes_a_step, reach
from tests.bench.fakes import SEARCHPATH

DECODERS = (
    'decoders=[ar,{decoder: sd_chain, overrides: ["tree.depth=3"]},'
    '{decoder: eagle2, overrides: ["tree=dynamic_small"]}]'
)
WORDS = [
    SEARCHPATH, "study=smoke", "model=random24", "prompts=fake", "metric=none", "backend.threads=1",
    "backend.dtype=float32", "latency.prompts=3", "quality.images=0", "gate=false", "report=false",
    DECODERS,
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    assert main(["run", *WORDS, f"run_dir={folder}"]) == 0
    return folder


@pytest.mark.parametrize("costs", ["steps", "images"])
def test_every_drafting_decoder_is_predicted_from_its_recorded_acceptance(
    run: Path, capsys: pytest.CaptureFixture[str], costs: str
) -> None:
    assert main(["predict", *WORDS, f"run_dir={run}", f"predict.costs={costs}"]) == 0
    rows = pd.read_csv(run / "predict" / "predicted.csv")
    ran = rows[rows.measured.notna()]
    assert list(ran.decoder) == ["sd_chain", "eagle2"]
    records = pd.read_parquet(run / "records.parquet")
    summary = pd.read_csv(run / "summary.csv").set_index("decoder")
    for row in ran.itertuples():
        mine = records[records.decoder == row.decoder]
        reached = reach(mine.accepted, int(mine.tree_depth.max()))
        assert row.codes_a_step == pytest.approx(codes_a_step(reached))
        assert row.measured == pytest.approx(summary.speedup[row.decoder])
        assert row.error == pytest.approx(row.predicted / row.measured - 1)
        assert 0 < row.predicted < 20
        parts = [row.predicted_draft, row.predicted_verify, row.predicted_accept]
        assert all(np.isfinite(parts)) and min(parts) > 0
    assert ("not run" in " ".join(rows.tree)) is (costs == "steps")  # a chain of fewer levels
    out = capsys.readouterr().out
    assert "predicted" in out and "mean size of the error" in out
    for ending in ("svg", "png"):
        assert (run / "predict" / f"predicted.{ending}").stat().st_size > 1000


Refusal = Callable[[Path, Path], list[str]]


def other_settings(run: Path, tmp: Path) -> list[str]:
    return [f"run_dir={run}", "latency.prompts=2"]


def no_run(run: Path, tmp: Path) -> list[str]:
    return [f"run_dir={tmp / 'nothing'}"]


def other_machine(run: Path, tmp: Path) -> list[str]:
    copy = tmp / "moved"
    shutil.copytree(run, copy)
    study = (copy / "study.json").read_text()
    (copy / "study.json").write_text(study.replace('"cpu": "', '"cpu": "not this '))
    return [f"run_dir={copy}"]


def unknown_costs(run: Path, tmp: Path) -> list[str]:
    return [f"run_dir={run}", "predict.costs=guess"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (other_settings, "was made with other settings"),
        (no_run, "holds no finished run"),
        (other_machine, "costs are to be measured on the machine of the run"),
        (unknown_costs, "unknown predict.costs 'guess'"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Refusal, says: str
) -> None:
    assert main(["predict", *WORDS, *words(run, tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_curves_reach_exactly_as_far_as_the_largest_tree() -> None:
    assert sizes(59) == (2, 3, 5, 9, 17, 33, 59)
    assert sizes(9) == (2, 3, 5, 9)
    assert sizes(1) == (2,)
