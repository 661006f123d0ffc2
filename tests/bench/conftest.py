"""Shared by the tests of the harness: a study of toy decoders, composed as a user would."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.config.compose import compose_study
from bench.config.schema import StudyConfig
from tests.bench import fakes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is an empty one: results/runs of the checkout, where a command looks when
    it is not told where, is not there."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


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
