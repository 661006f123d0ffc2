"""Shared by the tests of the decoders."""

from collections.abc import Iterator

import pytest

from tests.decoders.execution.cpu.cases import threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    """So that a test of the CPU kernel runs the code in which threads share the work, whatever
    number the process began with or an earlier test left behind."""
    with threads(2):
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For models so small that threads would only wait for each other."""
    with threads(1):
        yield
