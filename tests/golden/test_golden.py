"""Codes and accepted lengths are those of before, for every decoder; with and without guidance in
the CPU kernel too, which has no part in filters."""

import json

import pytest

from decoders.execution import with_execution
from decoders.execution.cpu.library import missing
from tests.golden.decoders import ALL, FILE, SAMPLINGS, generated, small

EXPECTED = json.loads(FILE.read_text())
HOW = [("eager", sampling) for sampling in SAMPLINGS]
HOW += [("compile", sampling) for sampling in ("sampling", "no guidance")]


@pytest.mark.parametrize(("how", "sampling"), HOW)
@pytest.mark.parametrize("name", ALL)
def test_codes_are_those_of_the_golden_file(name: str, how: str, sampling: str) -> None:
    if how == "compile" and missing() is not None:
        pytest.skip(str(missing()))
    assert (
        generated(with_execution(small(), how), name, sampling) == EXPECTED[f"{name} | {sampling}"]
    )
