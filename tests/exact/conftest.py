"""Shared by the tests of the gate."""

import pytest

from bench.judge.gate import deep, own, sampled


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few whole images and the last two levels alone, for verdicts that other checks decide."""
    monkeypatch.setattr(sampled, "DRAWN", 4 * sampled.BATCH)
    monkeypatch.setattr(deep, "ENOUGH", 0)
    monkeypatch.setattr(own, "NODES", 2048)
