"""docs/new_drafter.md says what the code says, and its commands are understood."""

import re
import shlex
from pathlib import Path

import pytest

from bench.commands.train import compose_train
from bench.config.compose import compose_study
from bench.config.hydra_edge import composed

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOC, SECOND = (ROOT / "docs" / "new_drafter.md").read_text().split("## 6.")
BLOCKS, LATER = BLOCK.findall(DOC), BLOCK.findall(SECOND)
COMMANDS = [shlex.split(text) for kind, text in BLOCKS if not kind]


def test_the_code_of_the_page_is_the_code_of_the_module():
    source = (ROOT / "decoders" / "propose" / "drafters" / "medusa.py").read_text()
    blocks = [text.strip("\n") for kind, text in BLOCKS if kind == "python"]
    assert all(block in source for block in blocks)
    body = source[source.index("class Head") :]
    assert re.sub(r"\n+", "\n", "\n".join(blocks)) == re.sub(r"\n+", "\n", body).strip("\n")


def test_the_second_example_is_the_code_of_its_module_and_a_stage():
    (code,) = [text.strip("\n") for kind, text in LATER if kind == "python"]
    assert code in (ROOT / "decoders" / "propose" / "drafters" / "eagle3.py").read_text()
    (words,) = [shlex.split(text) for kind, text in LATER if not kind]
    assert words[3] == "train"
    recipe = composed("recipe_config", words[4:])
    assert set(recipe["stages"]) <= recipe["train"].keys()


def test_the_yaml_of_the_page_is_the_yaml_of_the_group():
    (block,) = [text for kind, text in BLOCKS if kind == "yaml"]
    assert block == (ROOT / "conf" / "drafter" / "medusa.yaml").read_text()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[3])
def test_the_commands_of_the_page_are_understood(words):
    assert words[:3] == ["python", "-m", "bench"]
    command, overrides = words[3], words[4:]
    if command == "train":
        study = compose_train(overrides)
        assert study.learner.target == "decoders.propose.drafters.medusa.MedusaLearner"
    else:
        entry = compose_study(overrides).decoders[-1]
        assert entry.name == "medusa"
        assert entry.spec.drafter is not None
        assert entry.spec.drafter.target == "decoders.propose.drafters.medusa.Medusa"
