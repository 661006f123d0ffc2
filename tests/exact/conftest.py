"""Shared by the tests of the gate."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.gate import check, whole_law
from bench.gate.result import Check

LEFT_OUT = ("batches", "definition", "recorded_bound", "verified_law", "numbers", "wide")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`only(name)`: of the gate's checks this one runs, and those that all others need."""

    def leave(name: str) -> None:
        for other in LEFT_OUT:
            # Whether numbers are of a decoder's own, `batches` says.
            if other != name and (name, other) != ("numbers", "batches"):
                monkeypatch.setattr(check, f"{other}_check", lambda *_: Check("left out"))
        enumerate_ = whole_law.enumeration_check

        def enumerated(law: str, *given: Any) -> Check:
            if law == name:
                return enumerate_(law, *given)
            return Check(law, unfollowed=float(name == "images"))

        monkeypatch.setattr(whole_law, "enumeration_check", enumerated)

    return leave
