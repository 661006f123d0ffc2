"""What decoders are called where a reader sees them: on the page and in its figures papers' names
come first. Commands, text tables and files have the names of the study."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from bench.analyse.run import Run
from bench.config.methods import detailed, short_names


def names_of(run: Run) -> dict[str, str]:
    """Papers' names by decoder, different ones within a temperature and guidance."""
    groups = dict[str, dict[str, Any]]()
    for decoder, spec in run.specs.items():
        sampling = {key: value for key, value in spec.items() if key.startswith("sampling.")}
        groups.setdefault(str(sorted(sampling.items())), {})[decoder] = spec
    return {name: text for group in groups.values() for name, text in short_names(group).items()}


def pieces(text: str, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Divides a text at its decoders: what stands there, and of a decoder its name in the study. A
    setting that the text has in brackets behind a decoder is not said twice."""
    every = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)"
    first, *rest = re.split(rf"(?<![\w.+-])({every})(?![\w+-]|\.\w)", text)
    yield first, ""
    for name, after in zip(rest[::2], rest[1::2], strict=True):
        title, _, details = names[name].removesuffix(")").partition(" (")
        said = re.match(r"( \(.*?\))?", after)[0]  # type: ignore[index]
        yield detailed(title, *(one for one in details.split(", ") if one not in said)), name
        yield after, ""


def called(text: str, names: Mapping[str, str]) -> str:
    """A text with other names of the decoders in it."""
    return "".join(piece for piece, _ in pieces(text, names))


def renamed(run: Run, names: Mapping[str, str]) -> Run:
    """The run with these names of its decoders. Of equal ones, as of a decoder at two temperatures,
    that at temperature 0 is called greedy; those that stay equal have the study's names."""

    def told(names: Mapping[str, str]) -> Counter[str]:
        return Counter([*names.values(), *(e.name for e in run.entries if e.name not in names)])

    counts, greedy = told(names), {e.name for e in run.entries if e.number("temperature") == 0}
    names = {
        name: detailed(text, "greedy" * (counts[text] > 1 and name in greedy))
        for name, text in names.items()
    }
    counts = told(names)
    names = {name: text for name, text in names.items() if counts[text] == 1}

    def of(name: Any) -> Any:
        if isinstance(name, list):
            return [of(one) for one in name]
        return names.get(name, name)

    def change(table: pd.DataFrame) -> pd.DataFrame:
        columns = [c for c in ("decoder", "decoders") if c in table]
        return table.assign(**{column: table[column].map(of) for column in columns})

    return replace(
        run,
        sections=[
            replace(s, entries=[replace(e, name=of(e.name)) for e in s.entries])
            for s in run.sections
        ],
        fairness={of(name): one for name, one in run.fairness.items()},
        gate={of(name): one for name, one in run.gate.items()},
        tables={name: change(table) for name, table in run.tables.items()},
    )
