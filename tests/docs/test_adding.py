"""The parts of docs/adding.md are short, decode, and get the verdicts that the page states."""

import re
from typing import Any

import pytest

from decoders.api import ImageModel
from decoders.compose import build_decoder
from decoders.models.random_weights import random_model
from tests.decoders.compositions import images
from tests.docs.pages import ROOT, blocks, judged, variant_of, written

PAGE = ROOT / "docs" / "adding.md"
ROWS = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
CODE = blocks(PAGE, "python")[: len(ROWS)]  # behind the parts stands a metric


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    texts = [*CODE, *blocks(PAGE, "yaml")]
    names = [re.findall(r"^# (\S+\.(?:py|yaml))$", text, re.MULTILINE)[0] for text in texts]
    command = blocks(PAGE, "")[-1].splitlines()[-1]
    files = dict(zip(names, texts, strict=True))
    with written(tmp_path_factory.mktemp("adding"), files, command) as config:
        yield config


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return random_model(vocab=5, grid=4)


def test_the_parts_of_the_page_are_short():
    assert len(CODE) == 3
    assert all(len([line for line in text.splitlines() if line]) < 40 for text in CODE)


@pytest.mark.parametrize("name, verdict", ROWS)
def test_a_part_gets_the_verdict_that_the_page_states(name, verdict, study, model):
    variant = variant_of(study, model, name)
    report = judged(variant, model)
    assert report.word == verdict, report.detail
    assert variant.entry.expect in (None, verdict)


@pytest.mark.parametrize("name", [name for name, _ in ROWS])
def test_a_part_needs_fewer_forwards_than_ar(name, study, model):
    spec = variant_of(study, model, name).entry.spec
    generation = images(build_decoder(model, spec, model.sampling), ["a", "b", "c"])
    assert generation.codes.shape == (3, model.target.length)
    assert generation.trace.target_calls.float().mean() < model.target.length - 1
