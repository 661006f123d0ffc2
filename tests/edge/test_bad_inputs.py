"""Bad inputs, one row each: every answer is a message that says what was expected, what was found
and what to do. The rows stand in `cases_*.py`, by what is wrong."""

import importlib
import pkgutil

import pytest

import tests.edge as room
from tests.edge.table import Bad, answered

CASES: list[Bad] = [
    case
    for found in pkgutil.iter_modules(room.__path__)
    if found.name.startswith("cases_")
    for case in importlib.import_module(f"tests.edge.{found.name}").CASES
]


def test_no_case_stands_twice():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_input_is_answered_with_a_message(case, tmp_path, capsys, monkeypatch):
    answered(case, tmp_path, capsys, monkeypatch)
