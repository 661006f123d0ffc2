"""Codes and accepted lengths are those of before, for every decoder, under both executions."""

import json

import pytest

from decoders.executed import executed
from decoders.execution.cpu.library import missing
from tests.golden.decoders import ALL, FILE, SAMPLINGS, generated, small

EXPECTED = json.loads(FILE.read_text())


@pytest.mark.parametrize("how", ["eager", "cpu"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ALL)
def test_codes_are_those_of_the_golden_file(name: str, sampling: str, how: str) -> None:
    if how == "cpu" and missing() is not None:
        pytest.skip(str(missing()))
    assert generated(executed(small(), how), name, sampling) == EXPECTED[f"{name} | {sampling}"]
