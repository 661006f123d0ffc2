"""Prompts from your own file: one a line (.txt), a table (.csv, .tsv) or a list (.json)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import PromptError, unknown
from bench.prompts import Prompt, check, prompt_set

COLUMNS = ("prompt", "caption", "text")
READERS = (".txt", ".csv", ".tsv", ".json")


@prompt_set
def load(count: int | None, path: str) -> list[Prompt]:
    """The first `count` prompts of a file. Tables and lists of mappings need a key `prompt` (or
    `caption`, `text`) and may have `id` and `category`. Blank lines at the end of a .txt are
    ignored, others are empty prompts. Raises PromptError."""
    source = Path(path)
    text = read_text(source)
    if source.suffix == ".txt":
        items: list[Any] = text.rstrip().splitlines()
    elif source.suffix in (".csv", ".tsv"):
        delimiter = "\t" if source.suffix == ".tsv" else ","
        items = list(csv.DictReader(text.splitlines(), delimiter=delimiter))
    elif source.suffix == ".json":
        items = read_json(source, text)
    else:
        raise PromptError(unknown("kind of prompt file", source.suffix or source.name, READERS))
    if not isinstance(items, list):
        raise PromptError(f"{source} must hold a list of prompts, found a {type(items).__name__}")
    prompts = [_prompt(source, number, item) for number, item in enumerate(items, start=1)]
    return check(prompts, str(source), count)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, a byte-order mark removed. Raises PromptError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise PromptError(f"the prompt file {path} does not exist; set prompts.path=") from error
    except IsADirectoryError as error:
        raise PromptError(f"{path} is a folder, a file is expected") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from error


def read_json(path: Path, text: str) -> Any:
    """The JSON value of a file. Raises PromptError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise PromptError(f"{path} is not JSON: {error}") from error


def _prompt(source: Path, number: int, item: Any) -> Prompt:
    """One prompt of a line, a row or a list item; numbers are 1-based."""
    if isinstance(item, str):
        return Prompt(str(number), item.strip())
    if not isinstance(item, Mapping):
        raise PromptError(f"{source}: item {number} must be a text or a mapping, found {item!r}")
    lower = {str(k).lower(): v for k, v in item.items()}
    column = next((c for c in COLUMNS if c in lower), None)
    if column is None:
        raise PromptError(f"{source}: no column {', '.join(COLUMNS)} among {sorted(lower)}")
    text = lower[column]
    if not isinstance(text, str):
        raise PromptError(f"{source}: the prompt of item {number} is {text!r}, not a text")
    return Prompt(str(lower.get("id") or number), text.strip(), str(lower.get("category") or ""))
