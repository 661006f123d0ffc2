"""PartiPrompts (2206.10789): 1,632 prompts in twelve categories, tab-separated."""

from __future__ import annotations

from pathlib import Path

from bench.data.errors import PromptError
from bench.prompts import Prompt
from bench.prompts.file import HINT
from decoders.documents import one_line, parse_table, read_text


def load(count: int | None, path: str) -> list[Prompt]:
    """The prompts of the official file. PromptError, DecoderError."""
    source = Path(path)
    delimiter = "," if source.suffix.lower() == ".csv" else "\t"
    rows = parse_table(read_text(source, HINT), delimiter, path, quotes=False)
    if not rows or not {"Prompt", "Category"} <= set(rows[0]):
        raise PromptError(f"{source} is not PartiPrompts.tsv: no columns Prompt and Category")
    return [
        Prompt(f"parti-{number:04d}", row["Prompt"], one_line(row["Category"]))
        for number, row in enumerate(rows, start=1)
    ]
