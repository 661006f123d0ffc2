"""One made-up run for all tests of the report, and its report."""

from pathlib import Path

import pytest

from bench.analyse.run import Run
from bench.report.page import write_report
from bench.report.texts import Report, summarise
from tests.bench.report.synthetic import made_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("report") / "run", prompts=4)


@pytest.fixture(scope="session")
def said(run: Run) -> Report:
    return summarise(run)


@pytest.fixture(scope="session")
def written(run: Run) -> Path:
    """The folder of its report."""
    return write_report(run)
