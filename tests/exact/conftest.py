"""Shared by the tests of the gate."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.judge.gate import check, sampled, whole_law
from bench.judge.gate.report import CheckResult

CHECKS = ("definition_check", "loop_check", "rows_check", "wide_check")


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few whole images and the last two levels alone, for verdicts that other checks decide."""
    monkeypatch.setattr(sampled, "DRAWN", 4 * sampled.BATCH)
    monkeypatch.setattr(whole_law, "ENOUGH", 0)


@pytest.fixture
def found_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`found_once(fault)`: no check runs after one that reports this fault."""
    faults = []

    def until(fault: str) -> None:
        def once(check: Callable[..., CheckResult]) -> Callable[..., CheckResult]:
            def checked(*args: Any) -> CheckResult:
                if any(fault in one for one in faults):
                    return CheckResult("not needed")
                result = check(*args)
                faults.append(result.fault)
                return result

            return checked

        for name in CHECKS:
            monkeypatch.setattr(check, name, once(getattr(check, name)))
        monkeypatch.setattr(whole_law, "law_check", once(whole_law.law_check))

    return until
