"""Whose row a row is: its place in a run, and all that made it. What no longer matches is stale.

Why: rows stay for days in folders that people copy and merge, while drafters are edited, prompt
files grow and weights are trained again. A row counts only where it says of itself that it is the
row of its place, decoded by the code, the weights and the machine that are there now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config.schema import StudyConfig
from bench.plan.checkpoints import WEIGHTS
from bench.records.sources import sources_of
from bench.run.schedule import Cell
from decoders.api import ImageModel
from decoders.models.weights import sha256_of

PLACE = ("decoder", "protocol", "seed", "prompt_index", "repeat", "config_hash")
PROMPT = ("prompt_id", "prompt_hash", "category")
MACHINE = ("cpu", "gpu", "torch")
BESIDE = ("config.json", "records.parquet")  # of a checkpoint; of a run whose steps are replayed
SHOWN = 3  # names in a message


def identity_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a row: columns as they are, JSON columns as mappings."""
    versions = _mapping(row["versions"])
    found = {key: row[key] for key in (*PLACE, *PROMPT, "cpu", "gpu")}
    found |= {"torch": versions.get("torch", ""), "python": _minor(versions.get("python", ""))}
    return found | {key: _mapping(row[key]) for key in ("weights_hash", "sources")}


def expected_of(
    cell: str, stem: str, config_hash: str, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of a row by the place of its file and study.json, where no model is loaded."""
    found = re.fullmatch(r"([a-z]+)-(\d+)-(\d+)(?:-(\d+))?", stem)
    protocol, *numbers = found.groups("0") if found else (stem, -1, -1, -1)
    place = (cell.rpartition("-")[0], protocol, *map(int, numbers), config_hash)
    return dict(zip(PLACE, place, strict=True)) | {k: machine.get(k, "") for k in MACHINE}


@dataclass(frozen=True)
class Changed:
    """Why a recorded row is not the one that is wanted. foreign: it is another row altogether;
    why: what differs, for a message."""

    foreign: bool
    why: str


def changed(row: Mapping[str, Any], expected: Mapping[str, Any]) -> Changed | None:
    """What of `identity_of` a recorded row differs in; None where it is the row that is wanted.
    Only what `expected` has is compared."""
    found = identity_of(row)
    other = [key for key, value in expected.items() if found[key] != value]
    if not other:
        return None
    place = [key for key in other if key in PLACE]
    if place:
        says = ", ".join(f"{key} {found[key]}, expected {expected[key]}" for key in place)
        return Changed(True, f"is another row ({says})")
    return Changed(False, "; ".join(_reasons(found, expected, other)))


def _reasons(
    found: Mapping[str, Any], expected: Mapping[str, Any], other: list[str]
) -> Iterator[str]:
    if "sources" in other:
        yield f"{_names(found['sources'], expected['sources'])} changed"
    if "weights_hash" in other:
        yield f"weights changed: {_names(found['weights_hash'], expected['weights_hash'])}"
    if set(PROMPT) & set(other):
        yield "the prompts changed"
    for key in (*MACHINE, "python"):
        if key in other:
            there, here = found[key] or "none", expected[key] or "none"
            yield f"{key} was {there} and is {here}"


def _names(one: Mapping[str, str], two: Mapping[str, str]) -> str:
    """Keys that differ, the first few of them."""
    differ = [key for key in {**two, **one} if one.get(key) != two.get(key)]
    more = len(differ) - SHOWN
    return ", ".join(differ[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _mapping(text: Any) -> dict[str, Any]:
    """A JSON column; {} where it holds something else."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def code_of(config: StudyConfig, cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """Of each cell: source files of its parts and its model -> digests."""
    return {
        cell.key: sources_of([*(p.target for p in cell.entry.spec.parts), config.model.target])
        for cell in cells
    }


class Weights:
    """Tells whose weights are whose. Made before any decoder of the model is built."""

    def __init__(self, model: ImageModel, cells: Sequence[Cell]) -> None:
        named = {name: s for name, s in model.drafters.items() if isinstance(s, str)}
        self.model, self.before = model, dict(model.weights_sha256)
        self.sources = {
            cell.key: {
                named.get(w, w) for part in cell.entry.spec.parts for w in words(part.kwargs)
            }
            for cell in cells
        }

    def by_cell(self) -> dict[str, dict[str, str]]:
        """Of each cell, once all decoders are built: digests of the model's own weights, of those
        that its parts have loaded and of those in files and folders that its settings name.
        Weights loaded from what no setting names count for every decoder."""
        claimed = set[str]().union(*self.sources.values())
        out = {}
        for key, own in self.sources.items():
            found = dict(self.before)
            for name, value in self.model.weights_sha256.items():
                source = name.rpartition("/")[0]
                if source in own or source not in claimed:
                    found[name] = value
            for folder in sorted(own):
                unread = [p for p in weight_files(folder) if f"{folder}/{p.name}" not in found]
                found |= {str(file): sha256_of(file) for file in unread}
            out[key] = found
        return out


def words(value: Any) -> Iterator[str]:
    """Strings in a part's settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from words([*value.values()])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from words(inner)


def weight_files(word: str) -> list[Path]:
    """The weights that a setting names: a file, or those directly in a folder."""
    path = Path(word).expanduser()
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [p for p in files if (p.suffix in WEIGHTS or p.name in BESIDE) and p.is_file()]
    except (OSError, ValueError, RuntimeError):  # no name of a file, or not to be read
        return []
