"""Files of a run folder that were copied from different runs are refused."""

import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.config.compose import compose_study
from bench.run.study import finish, run_study
from tests.bench import fakes

WORDS = "decoders=[fake_ar,fake_spec]", "gate=false", "metric=none", "latency.blocks=1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two finished runs of one study; of the second other images."""
    folder = tmp_path_factory.mktemp("finished")
    for seed, name in enumerate(("one", "two")):
        words = fakes.SEARCHPATH, "study=fake", *WORDS, f"seed={seed}", f"run_dir={folder / name}"
        finish(run_study(compose_study(words)))
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize("name", ["findings.json", "study.json", "records.parquet"])
def test_a_file_of_another_run_is_refused(runs, name, tmp_path, capsys):
    one, two = runs
    shutil.copy(two / name, one / name)
    assert main(["report", str(one), f"out={tmp_path / 'report'}"]) == 2
    message = capsys.readouterr().err
    assert "do not belong together" in message and "copy the files of one run" in message
    assert not (tmp_path / "report").exists()


def test_findings_of_another_hour_of_the_same_study_are_refused(runs):
    one, _ = runs
    findings = json.loads((one / "findings.json").read_text())
    (one / "findings.json").write_text(json.dumps(findings | {"rows": "0123456789abcdef"}))
    assert main(["report", str(one)]) == 2


def test_older_findings_say_less_and_are_read_unless_their_pictures_are_others(runs, capsys):
    one, _ = runs
    findings = json.loads((one / "findings.json").read_text())
    del findings["rows"]
    (one / "findings.json").write_text(json.dumps(findings))
    assert load(one).entries
    findings["scores"] = {"fake_ar": {"clip": 60.0, "clip_each": [60.0] * 99}}
    (one / "findings.json").write_text(json.dumps(findings))
    assert main(["report", str(one)]) == 2
    assert "99 scores of fake_ar, which has" in capsys.readouterr().err


def test_a_run_that_goes_on_forgets_verdicts_and_scores_of_fewer_rows(runs, fake_study):
    one, _ = runs
    for path in (one / "rows").glob("fake_spec*"):
        path.unlink()
    config = fake_study(*WORDS, f"run_dir={one}", "seed=0")
    again = finish(run_study(config))
    assert {entry.name for entry in again.entries} >= {"fake_ar", "fake_spec"}
    assert load(one).rows.equals(again.rows)
