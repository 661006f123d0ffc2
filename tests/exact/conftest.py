"""Shared by the tests of the gate."""

import pytest

from bench.judge.gate import sampled


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of whole images, for verdicts that the enumerated laws of the rule decide."""
    monkeypatch.setattr(sampled, "DRAWN", sampled.BATCH)
