"""README and docs are short, their links lead somewhere, their commands are understood, and their
code works."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import COMMANDS, main
from bench.commands import evaluate
from bench.commands.compare import CompareSettings
from bench.commands.diff import DiffSettings
from bench.commands.train import compose_train
from bench.config.arguments import divided, folders, settings
from bench.config.compose import compose_study
from bench.config.hydra_edge import composed
from bench.report.page import PlaceSettings
from bench.run.shards import RunSettings
from decoders.models.causal_lm import CausalLM
from decoders.models.random_weights import random_model
from tests.docs.pages import BLOCK, PAGES, ROOT, blocks, judged, variant_of, written

README, TARGET = ROOT / "README.md", ROOT / "docs" / "new_target.md"
COMMAND = rf"(?:python -m )?bench ((?:{'|'.join(COMMANDS)}) [^\n`#]+)"
OTHER_TESTS = ("drafter=marginal", "acceptance=unsure")  # parts that a page defines


def test_the_readme_is_read_in_a_few_minutes():
    text = README.read_text()
    assert len(text.splitlines()) <= 110
    assert sum(len(page.read_text().split()) for page in PAGES) <= 11000, "README and docs"
    clone, *commands = blocks(README, "")[0].splitlines()
    assert clone.startswith("git clone --depth 1")
    assert [line.split()[:2] for line in commands] == [["make", "bench"], ["make", "test"]]


def anchors(page: Path) -> set[str]:
    """Names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        name, _, heading = link.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), link
        assert not heading or heading in anchors(there), link


def commands() -> list[str]:
    """Those in blocks, and those between backticks, also over the end of a line."""
    every = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for _, block in BLOCK.findall(text):
            every += re.findall(COMMAND, block)
        every += re.findall(f"`{COMMAND}`", re.sub(r"(?<!\|)\n(?!\|)", " ", BLOCK.sub("", text)))
    unique = dict.fromkeys(map(str.strip, every))
    return [c for c in unique if not any(part in c for part in OTHER_TESTS)]


@cache  # a study and its shards are one
def compose_once(*words: str) -> None:
    compose_study(words)


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_docs_is_understood(command):
    command = command.replace("$SLURM_ARRAY_TASK_ID", "0").replace("RUN RUN RUN", "RUN A B")
    name, *words = shlex.split(command)
    if name == "list":
        assert main([name, *words]) == 0
    elif name == "diff":
        settings(DiffSettings, folders(words)[1])
    elif name == "compare":
        settings(CompareSettings, folders(words)[1])
    elif name == "evaluate":
        evaluate.parse(words)
    elif name == "train":
        recipe = any(word.startswith("recipe=") for word in words)
        composed("recipe_config", words) if recipe else compose_train(words)
    elif name == "report" and folders(words)[0]:
        settings(PlaceSettings, folders(words)[1])
    else:
        compose_once(*divided(RunSettings, divided(PlaceSettings, words)[1])[1])


def test_the_drafter_of_the_readme_decodes_exactly(tmp_path):
    (source,), (yaml,) = blocks(README, "python"), blocks(README, "yaml")
    (command,) = [text for text in blocks(README, "") if "drafter=marginal" in text]
    files = {"my_drafter.py": source, "conf/drafter/marginal.yaml": yaml}
    model = random_model(vocab=40, grid=4)
    with written(tmp_path, files, command.strip().splitlines()[-1]) as study:
        report = judged(variant_of(study, model, "mine"), model)
    assert report.word == "exact", report.detail


def test_the_code_of_new_target_is_the_model_s_and_its_first_block_makes_a_target():
    first, *code = (text.strip("\n") for text in blocks(TARGET, "python"))
    source = (ROOT / "decoders" / "models" / "simplear.py").read_text()
    assert all(block in source for block in code)
    (block,) = blocks(TARGET, "yaml")
    assert block in (ROOT / "conf" / "model" / "simplear_05b.yaml").read_text()
    names: dict[str, Any] = {}
    exec(first, names)
    target = names["target"]
    assert isinstance(target, CausalLM)
    assert (target.vocab_size, target.length, target.prefix) == (16, 16, 8)
