"""Whose a run's folder is, by its study.json, and whose row a row is: its place in a run, and all
that made it. What no longer matches is stale.

Why: rows stay for days in folders that people copy and merge, while drafters are edited, prompt
files grow and weights are trained again. A row counts only where it says of itself that it is the
row of its place, decoded by the code, the weights and the machine that are there now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config.differences import MACHINES, differences
from bench.config.schedule import BATCHED
from bench.config.schema import StudyConfig
from bench.data.errors import FolderError
from bench.data.files import write_text
from bench.records import rows as records
from decoders.documents import read_object
from decoders.kinds import Amount, KindError, entries

IDENTITY = {
    "schema_version": int, "config_hash": str, "rows": Amount,
    "config": dict[str, Any], "machine": dict[str, str],
}  # fmt: skip
PLACE = (*records.PLACE, "config_hash")
PROMPT = ("prompt_id", "prompt_hash", "category")
MACHINE = ("cpu", "gpu", "torch")
SHOWN = 3  # names in a message
SAME = ("schema_version", "config_hash", "machine")  # in all that share a folder


def read_identity(path: Path) -> dict[str, Any]:
    """study.json of a run: schema_version, config_hash, config, machine; rows where the run came
    to know how many. Raises FolderError where there is none, or
    another kind of file."""
    study = path / "study.json"
    if path.is_file():
        raise FolderError(f"{path} is a file, where the folder of a run is expected")
    try:
        found = read_study(study)
    except FileNotFoundError:
        raise FolderError(
            f"{path} holds no run; `python -m bench run` with the same words makes one"
        ) from None
    if not {"config_hash", "config", "machine"} <= set(found):
        raise FolderError(f"{study} is no study.json of a run; choose another run_dir=")
    return found


def read_study(study: Path) -> dict[str, Any]:
    """study.json, each key of its kind. Raises FolderError."""
    found = at = read_json(study, IDENTITY, advice="; choose another run_dir=")
    for key in ("config", "prompts", "kwargs"):
        try:
            at = entries(at, {key: dict[str, Any]}, str(study)).get(key, {})
        except KindError as error:
            raise FolderError(f"{study} is damaged: {error}") from error
    return found


def read_json(
    path: Path, known: Mapping[str, Any], required: Sequence[str] = (), advice: str = ""
) -> dict[str, Any]:
    """The object of a JSON file, whose keys `known` are as `decoders.kinds` says. Raises
    FolderError, and FileNotFoundError."""
    try:
        found = read_object(path, known)
    except KindError as error:
        raise FolderError(f"{path} is damaged: {error}{advice}") from error
    lacking = [key for key in required if key not in found]
    if lacking:
        raise FolderError(f"{path} is damaged: it lacks {', '.join(lacking)}{advice}")
    return found


def write_identity(path: Path, identity: Mapping[str, Any]) -> None:
    write_text(path / "study.json", json.dumps(identity, indent=1, sort_keys=True))


def guard(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises FolderError where `found` (study.json) is not what this run would write."""
    require_schema(path, found, (records.SCHEMA_VERSION,))
    require_configuration(path, found, wanted["config_hash"], wanted["config"])
    if found.get("machine") != wanted["machine"]:
        shown = differences(found.get("machine", {}), wanted["machine"], MACHINES)
        raise FolderError(
            f"{path} was measured on another machine, and times of two machines do not compare: "
            f"{shown}. {advice(path)}"
        )


def require_own(path: Path, config: StudyConfig) -> dict[str, Any]:
    """study.json of a study's folder. Raises FolderError where there is none, or it is of another
    schema version or configuration."""
    found = read_identity(path)
    require_schema(path, found)
    require_configuration(path, found, config.hash, config.measured())
    return found


def require_schema(
    path: Path, found: Mapping[str, Any], versions: Sequence[int] = records.READABLE
) -> None:
    """Raises FolderError where `found` (study.json) is of rows of no such schema version."""
    if found.get("schema_version") not in versions:
        raise FolderError(
            f"{path} holds rows of schema version {found.get('schema_version')}, this code writes "
            f"{records.SCHEMA_VERSION}. {advice(path)}"
        )


def require_configuration(
    path: Path, found: Mapping[str, Any], config_hash: str, config: Mapping[str, Any]
) -> None:
    """Raises FolderError where `found` (study.json) is of another configuration."""
    if found.get("config_hash") != config_hash:
        there, here = found.get("config", {}), config
        if isinstance(there.get("name"), str) and there["name"] != here.get("name"):
            raise FolderError(
                f"{path} holds the study {there.get('name')}, asked for is {here.get('name')}; add "
                f"study={there.get('name')} (and the other words of that run) to go on with it. "
                f"{advice(path)}"
            )
        raise FolderError(
            f"{path} holds another configuration: {differences(there, here)}. {advice(path)}, or "
            "ask for the settings that are there to go on with it"
        )


def advice(path: Path) -> str:
    """What to do about a folder that is of something else."""
    return (
        "Nothing was changed. Choose another folder (run_dir=..., or name=... for "
        f"results/runs/<name>), or delete {path}"
    )


def identity_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a row: columns as they are, JSON columns as mappings."""
    versions = _mapping(row["versions"])
    found = {key: row[key] for key in (*PLACE, *PROMPT, "cpu", "gpu")}
    found |= {"batch": row["batch"]} if row["protocol"] == BATCHED else {}
    minor = ".".join(versions.get("python", "").split(".")[:2])
    found |= {"torch": versions.get("torch", ""), "python": minor}
    return found | {key: _mapping(row[key]) for key in ("weights_hash", "sources")}


def expected_of(
    cell: str, stem: str, config_hash: str, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of a row by the place of its file and study.json, where no model is loaded."""
    place = records.place_of(cell, stem) or {"protocol": stem, "seed": -1}
    return place | {"config_hash": config_hash} | {key: machine.get(key, "") for key in MACHINE}


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
    other = [key for key, value in expected.items() if found.get(key) != value]
    if not other:
        return None
    place = [key for key in other if key in (*PLACE, "batch")]
    if place:
        says = ", ".join(f"{key} {found.get(key)}, expected {expected[key]}" for key in place)
        return Changed(True, f"is another row ({says})")
    return Changed(False, "; ".join(_reasons(found, expected, other)))


def _reasons(
    found: Mapping[str, Any], expected: Mapping[str, Any], other: list[str]
) -> Iterator[str]:
    if "sources" in other:
        yield f"{differing(found['sources'], expected['sources'])} changed"
    if "weights_hash" in other:
        yield f"weights changed: {differing(found['weights_hash'], expected['weights_hash'])}"
    if set(PROMPT) & set(other):
        yield "the prompts changed"
    for key in (*MACHINE, "python"):
        if key in other:
            there, here = found[key] or "none", expected[key] or "none"
            yield f"{key} was {there} and is {here}"


def differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
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
