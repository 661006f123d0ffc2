"""docs/new_target.md says what the code says; its code runs."""

import re
from pathlib import Path
from typing import Any

from decoders.models.causal_lm import CausalLM

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "new_target.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
FIRST, *CODE = [text.strip("\n") for kind, text in BLOCKS if kind == "python"]


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
