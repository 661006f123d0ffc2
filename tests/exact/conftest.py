"""Shared by the tests of the gate."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.judge.gate import check, whole_law
from bench.judge.gate.report import CheckResult

CHECKS = {
    check: ("batches_check", "definition_check", "loop_check", "wide_check"),
    whole_law: ("enumeration_check",),
}


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

        for module, names in CHECKS.items():
            for name in names:
                monkeypatch.setattr(module, name, once(getattr(module, name)))

    return until
