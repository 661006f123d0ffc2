"""PartiPrompts (2206.10789): 1,632 prompts in twelve categories, tab-separated."""

from __future__ import annotations

from pathlib import Path

from bench.data.errors import PromptError, unknown
from bench.prompts import Prompt, check, prompt_set
from bench.prompts.file import HINT
from decoders.text_files import one_line, parse_table, read_text


@prompt_set
def load(count: int | None, path: str, category: str | None = None) -> list[Prompt]:
    """The first `count` prompts of the official file, of one category if given. PromptError."""
    source = Path(path)
    delimiter = "," if source.suffix.lower() == ".csv" else "\t"
    rows = parse_table(read_text(source, HINT), delimiter, path, quotes=False)
    if not rows or not {"Prompt", "Category"} <= set(rows[0]):
        raise PromptError(f"{source} is not PartiPrompts.tsv: no columns Prompt and Category")
    prompts = [
        Prompt(f"parti-{number:04d}", one_line(row["Prompt"]), one_line(row["Category"]))
        for number, row in enumerate(rows, start=1)
    ]
    if category is not None:
        known = {p.category for p in prompts}
        if category not in known:
            raise PromptError(unknown("prompts.category", category, known))
        prompts = [p for p in prompts if p.category == category]
    return check(prompts, str(source), count)
