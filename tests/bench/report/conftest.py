"""One made-up run for all tests of the report, and its report."""

from pathlib import Path

import pytest

from bench.analyse.run_data import RunData
from bench.report.build import write_report
from bench.report.summarise import Report, summarise
from tests.bench.report.synthetic import made_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return made_run(tmp_path_factory.mktemp("report") / "run", prompts=4)


@pytest.fixture(scope="session")
def said(run: RunData) -> Report:
    return summarise(run)


@pytest.fixture(scope="session")
def written(run: RunData) -> Path:
    """The folder of its report."""
    return write_report(run)
