"""study.json of a run's folder, and whether the folder is that of the study at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.config.differences import MACHINES, differences
from bench.config.schema import StudyConfig
from bench.errors import FolderError
from bench.records import schema as records
from decoders.documents import read_object
from decoders.kinds import Amount, KindError

IDENTITY = {
    "schema_version": int, "config_hash": str, "rows": Amount,
    "config": dict[str, Any], "machine": dict[str, Any], "attention": list[dict[str, Any]],
}  # fmt: skip
SAME = ("schema_version", "config_hash", "machine")  # in all that share a folder


def read_identity(path: Path) -> dict[str, Any]:
    """study.json of a run: schema_version, config_hash, config, machine; rows where the run came
    to know how many, attention where it chose one. Raises FolderError where there is none, or
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
    try:
        return read_object(study, IDENTITY)
    except KindError as error:
        raise FolderError(f"{study} is damaged: {error}; choose another run_dir=") from error


def write_identity(path: Path, identity: Mapping[str, Any]) -> None:
    records.write_text(path / "study.json", json.dumps(identity, indent=1, sort_keys=True))


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
