"""The commands, and `python -m bench COMMAND --help`: the docstring of each.

Why read as text: help must answer in under a second, and a command's own module imports torch or
Hydra.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDY = "bench.commands.study"
COMMANDS = {
    "run": STUDY,
    "sweep": STUDY,
    "report": STUDY,
    "check": STUDY,
    "compare": "bench.compare.compare",
    "diff": "bench.compare.diff",
    "evaluate": "bench.commands.evaluate",
    "train": "bench.commands.train",
    "fetch": "bench.commands.fetch",
    "list": STUDY,
}  # name -> module


def manual(command: str) -> str:
    """The help of a command."""
    text = (ROOT / (COMMANDS[command].replace(".", "/") + ".py")).read_text(encoding="utf-8")
    functions = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
    own = next(n for n in functions if n.name == f"cmd_{command}")
    return ast.get_docstring(own) or ""


def about(command: str) -> str:
    """What a command does in a line."""
    first = manual(command).partition("\n")[0].rstrip(".")
    return first[0].lower() + first[1:]
