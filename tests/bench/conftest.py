"""Shared by the tests of the harness: a study of toy decoders, composed as a user would."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analyse.run import Run
from bench.config.compose import compose_study
from bench.config.schema import StudyConfig
from bench.run.contender import Study
from bench.run.study import run_study
from bench.store.run_folder import RunFolder
from tests.bench import fakes
from tests.bench.report.synthetic import made_run

Finished = tuple[StudyConfig, Study]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is an empty one: results/runs of the checkout, where a command looks when
    it is not told where, is not there."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One made-up run for all tests of what is computed and said of a run."""
    return made_run(tmp_path_factory.mktemp("report") / "run", prompts=4)


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw no plots, which take most of a report's time."""
    monkeypatch.setattr("bench.report.page.figures", lambda _: [])


@pytest.fixture
def fake_study(tmp_path: Path) -> Callable[..., StudyConfig]:
    """`fake_study("latency.prompts=2", ...)`: the study conf/study/fake.yaml in a fresh folder."""
    fakes.CALLS.clear()
    fakes.PREPARED.clear()

    def compose(*words: str) -> StudyConfig:
        given = {w.split("=", 1)[0] for w in words}
        where = [] if "run_dir" in given else [f"run_dir={tmp_path / 'run'}"]
        return compose_study([fakes.SEARCHPATH, "study=fake", *where, *words])

    return compose


@pytest.fixture(scope="session")
def ran() -> dict[tuple[str, ...], Finished]:
    """What `fake_run` has run, by the words."""
    return {}


@pytest.fixture
def fake_run(
    ran: dict[tuple[str, ...], Finished], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Finished]:
    """`fake_run(*words)`: such a study after its run, in the folder of `fake_study`. It is decoded
    once for all tests; each has a copy of the folder and of the rows."""

    def finished(*words: str) -> Finished:
        if words not in ran:
            where = f"run_dir={tmp_path_factory.mktemp('ran') / 'run'}"
            config = compose_study([fakes.SEARCHPATH, "study=fake", where, *words])
            ran[words] = config, run_study(config)
        config, result = ran[words]
        folder = Path(shutil.copytree(result.path, tmp_path / "run"))
        mine = replace(config, run_dir=str(folder))
        own = replace(result, config=mine, folder=RunFolder(folder), rows=result.rows.copy())
        return mine, own

    return finished
