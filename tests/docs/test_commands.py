"""Every `python -m bench` command of README and docs is understood: its settings exist and fit."""

import re
import shlex
from pathlib import Path

import pytest

from bench.__main__ import COMMANDS, main
from bench.commands import evaluate
from bench.commands.train import compose_train
from bench.compare.compare import CompareSettings
from bench.compare.diff import DiffSettings
from bench.config.arguments import divided, folders, settings
from bench.config.compose import compose_study
from bench.config.hydra_edge import composed
from bench.report.page import PlaceSettings
from bench.run.shards import part_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = rf"(?:python -m )?bench ((?:{'|'.join(COMMANDS)}) [^\n`#]+)"
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHER_TESTS = ("drafter=marginal", "acceptance=unsure")  # parts that a page defines


def commands() -> list[str]:
    """Those in blocks, and those between backticks, also over the end of a line."""
    every = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for block in BLOCK.findall(text):
            every += re.findall(COMMAND, block)
        every += re.findall(f"`{COMMAND}`", re.sub(r"(?<!\|)\n(?!\|)", " ", BLOCK.sub("", text)))
    unique = dict.fromkeys(map(str.strip, every))
    return [c for c in unique if not any(part in c for part in OTHER_TESTS)]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_docs_is_understood(command):
    command = command.replace("$SLURM_ARRAY_TASK_ID", "0")
    name, *words = shlex.split(command)
    if name == "list":
        assert main([name, *words]) == 0
    elif name == "diff":
        settings(DiffSettings, folders(words)[1])
    elif name == "compare":
        settings(CompareSettings, words)
    elif name == "evaluate":
        evaluate.parse(words)
    elif name == "train":
        recipe = any(word.startswith("recipe=") for word in words)
        composed("recipe_config", words) if recipe else compose_train(words)
    else:
        compose_study(part_of(divided(PlaceSettings, words)[1])[1])
