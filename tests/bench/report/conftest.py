"""What is said of the made-up run, and its report."""

from pathlib import Path

import pytest

from bench.analyse.run import Run
from bench.report.page import write_report
from bench.report.texts import Report, summarise


@pytest.fixture(scope="session")
def said(run: Run) -> Report:
    return summarise(run)


@pytest.fixture(scope="session")
def written(run: Run) -> Path:
    """The folder of its report."""
    return write_report(run)
