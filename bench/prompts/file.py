"""Prompts from your own file: one a line (.txt), a table (.csv, .tsv) or a list (.json)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from bench.errors import PromptError, unknown
from bench.prompts import Prompt, check, prompt_set
from decoders import text_files

COLUMNS = ("prompt", "caption", "text")
READERS = (".txt", ".csv", ".tsv", ".json")
NAMES = (str, int, type(None))  # what an id or a category may be


@prompt_set
def load(count: int | None, path: str) -> list[Prompt]:
    """The first `count` prompts of a file. Tables and lists of mappings need a key `prompt` (or
    `caption`, `text`) and may have `id` and `category`. Blank lines at the end of a .txt are
    ignored, others are empty prompts; a line break inside a prompt is a space. PromptError."""
    source = Path(path)
    if source.suffix not in READERS and not source.is_dir():
        raise PromptError(unknown("kind of prompt file", source.suffix or source.name, READERS))
    text = read_text(source)
    if source.suffix == ".txt":
        items: Any = text_files.lines_of(text)
    elif source.suffix == ".json":
        items = read_json(source, text)
    else:
        items = read_table(source, text)
    if not isinstance(items, list):
        raise PromptError(f"{source} must hold a list of prompts, found a {type(items).__name__}")
    prompts = [_prompt(source, number, item) for number, item in enumerate(items, start=1)]
    return check(prompts, str(source), count)


def read_text(path: Path, hint: str = "set prompts.path=") -> str:
    """The text of a UTF-8 file, a byte-order mark removed. hint: what to do where there is none.
    Raises PromptError."""
    with text_files.said_as(PromptError):
        return text_files.read_text(path, hint)


def read_json(path: Path, text: str) -> Any:
    """The JSON value of a file. Raises PromptError."""
    with text_files.said_as(PromptError):
        return text_files.parse_json(text, str(path))


def read_table(path: Path, text: str, quotes: bool = True) -> list[dict[str, str]]:
    """The rows of a table; all but .csv are separated by tabs. Raises PromptError."""
    with text_files.said_as(PromptError):
        delimiter = "," if path.suffix.lower() == ".csv" else "\t"
        return text_files.parse_table(text, delimiter, str(path), quotes)


def _prompt(source: Path, number: int, item: Any) -> Prompt:
    """One prompt of a line, a row or a list item; numbers are 1-based."""
    if isinstance(item, str):
        return Prompt(str(number), text_files.one_line(item))
    if not isinstance(item, Mapping):
        raise PromptError(
            f"{source}: item {number} must be a text or a mapping, found {brief(item)}"
        )
    lower = {str(k).lower(): v for k, v in item.items()}
    if len(lower) < len(item):
        raise PromptError(f"{source}: item {number} has a key twice among {sorted(item)}")
    column = next((c for c in COLUMNS if c in lower), None)
    if column is None:
        raise PromptError(f"{source}: no column {', '.join(COLUMNS)} among {sorted(lower)}")
    text = lower[column]
    if not isinstance(text, str):
        raise PromptError(f"{source}: the prompt of item {number} is {brief(text)}, not a text")
    own, category = (_name(source, number, key, lower.get(key)) for key in ("id", "category"))
    return Prompt(own or str(number), text_files.one_line(text), category)


def _name(source: Path, number: int, key: str, value: Any) -> str:
    """An id or a category as a text; "" where there is none."""
    if not isinstance(value, NAMES) or isinstance(value, bool):
        raise PromptError(
            f"{source}: the {key} of item {number} must be a text or a whole number, found "
            f"{brief(value)}"
        )
    return "" if value is None else text_files.one_line(str(value))
