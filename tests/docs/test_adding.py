"""The parts of docs/adding.md are short, decode, and get the verdicts that the page states."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.config.compose import compose_study
from bench.config.schema import DecoderVariant, StudyConfig, variants
from bench.run.finish import run_gate
from decoders.api import ImageModel
from decoders.compose import DecoderSpec, build_decoder
from decoders.models.random_weights import random_model
from decoders.noise import Noise

DOC = (Path(__file__).parents[2] / "docs" / "adding.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for kind, text in BLOCKS if not kind for line in text.splitlines()]
WORDS = COMMANDS[-1]
ROWS = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", DOC, re.MULTILINE)
PROMPTS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The study of the page's command, with the page's files in a folder of their own."""
    folder = tmp_path_factory.mktemp("adding")
    for _, text in [block for block in BLOCKS if block[0]]:
        path = folder / re.findall(r"^# (\S+\.(?:py|yaml))$", text, re.MULTILINE)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield compose_study([*WORDS[4:], f"hydra.searchpath=[file://{folder}/conf]"])


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return random_model(vocab=5, grid=4)


def variant_of(study: StudyConfig, model: ImageModel, name: str) -> DecoderVariant:
    (mine,) = [one for one in variants(study, model.sampling) if one.name == name]
    return mine


def decoded(spec: DecoderSpec, model: ImageModel) -> Any:
    noise = Noise.for_prompts(1, PROMPTS, model.target.length)
    return build_decoder(model, spec, model.sampling).generate(model.text.encode(PROMPTS), noise)


def test_the_parts_of_the_page_are_short():
    code = [text for kind, text in BLOCKS if kind == "python"]
    assert len(code) == len(ROWS) == 3
    assert all(len([line for line in text.splitlines() if line]) < 40 for text in code)


@pytest.mark.parametrize("name, verdict", ROWS)
def test_a_part_gets_the_verdict_that_the_page_states(name, verdict, study, model, small_images):
    (report,) = run_gate(model, [variant_of(study, model, name)], lambda: ["a red ball"])
    assert report.verdict == verdict, report.detail
    assert report.as_expected


@pytest.mark.parametrize("name", [name for name, _ in ROWS])
def test_a_part_needs_fewer_forwards_than_ar(name, study, model):
    size = model.target.length
    generation = decoded(variant_of(study, model, name).entry.spec, model)
    assert generation.codes.shape == (len(PROMPTS), size)
    assert generation.trace.target_calls.float().mean() < size - 1
