"""Shared by the tests of the gate."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.judge.gate import check, deep, own, sampled
from bench.judge.gate.report import Finding

CHECKS = ("definition_check", "lemma_check", "rows_check", "drafter_check", "wide_check")


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few whole images and the last two levels alone, for verdicts that other checks decide."""
    monkeypatch.setattr(sampled, "DRAWN", 4 * sampled.BATCH)
    monkeypatch.setattr(deep, "ENOUGH", 0)
    monkeypatch.setattr(own, "NODES", 2048)


@pytest.fixture
def found_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`found_once(says)`: what is wrong is looked for until a check says this."""
    seen = []

    def until(says: str) -> None:
        def once(look: Callable[..., Finding]) -> Callable[..., Finding]:
            def looked(*args: Any) -> Finding:
                if any(says in fault for fault in seen):
                    return Finding("not needed")
                found = look(*args)
                seen.append(found.fault)
                return found

            return looked

        for name in CHECKS:
            monkeypatch.setattr(check, name, once(getattr(check, name)))
        monkeypatch.setattr(check, "LAWS", {n: once(look) for n, look in check.LAWS.items()})

    return until
