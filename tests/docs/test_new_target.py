"""docs/new_target.md says what the code says; its code and commands run."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.config.compose import compose_study
from decoders.models.causal_lm import CausalLM

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "new_target.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
FIRST, *CODE = [text.strip("\n") for kind, text in BLOCKS if kind == "python"]
COMMANDS = [shlex.split(text) for kind, text in BLOCKS if not kind]


def test_the_code_and_the_yaml_of_the_page_are_those_of_the_model():
    source = (ROOT / "decoders" / "models" / "simplear.py").read_text()
    assert all(block in source for block in CODE)
    (block,) = [text for kind, text in BLOCKS if kind == "yaml"]
    assert block in (ROOT / "conf" / "model" / "simplear_05b.yaml").read_text()


def test_the_first_block_makes_a_target():
    names: dict[str, Any] = {}
    exec(FIRST, names)
    target = names["target"]
    assert isinstance(target, CausalLM)
    assert (target.vocab_size, target.length, target.prefix) == (16, 16, 8)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[5])
def test_the_commands_of_the_page_are_understood(words):
    assert words[:4] == ["python", "-m", "bench", "run"]
    config = compose_study(words[4:])
    assert config.model.target == "decoders.models.simplear.load"
    drafters = {e.spec.drafter.target for e in config.decoders if e.spec.drafter}
    assert drafters <= {"decoders.propose.drafters.draft_model.DraftModel"}
