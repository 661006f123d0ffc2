"""Codes and accepted lengths are those of before, for every decoder, with and without the kernel."""

from __future__ import annotations

import json

import pytest

from decoders.execution.cpu.library import missing
from decoders.execution.eager import execution
from tests.golden.decoders import ALL, FILE, SAMPLINGS, generated, small

EXPECTED = json.loads(FILE.read_text())


@pytest.mark.parametrize("how", ["eager", "cpu"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ALL)
def test_codes_are_those_of_the_golden_file(name: str, sampling: str, how: str) -> None:
    from dataclasses import replace

    model = small()
    if how == "cpu":
        if missing() is not None:
            pytest.skip(str(missing()))
        model = replace(model, execution=execution("cpu"))
        model.execution.prepare(model)
    assert generated(model, name, sampling) == EXPECTED[f"{name} | {sampling}"]
