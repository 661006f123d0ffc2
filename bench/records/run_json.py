"""run.json: what a finished run says of itself, with the SHA-256 of every file that says it.

    study, schema_version, config_hash   as in study.json, which holds the configuration itself
    commits, dirty, started              of the rows
    machine, fingerprint                 processor, GPU, threads, torch; a hash of them
    protocols                            how quality was measured, for each group of decoders
    verdicts                             the exactness gate's, by decoder
    left_out                             columns that were emptied before the run was published
    files                                SHA-256 of each file
    seal                                 SHA-256 of all the above

Nothing is measured here and nothing is kept twice: figures stay in summary.csv and settings in
study.json; run.json says which bytes of them belong together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import digest
from bench.data.errors import FolderError
from bench.data.files import refuse_links, write_text
from bench.records.kept import judged
from bench.records.load import ROWS, lines_of, read_rows
from bench.records.study import read_identity, read_json
from decoders.models.weights import sha256_of

FILE, FORMAT = "run.json", 1
REQUIRED = ("study.json", ROWS, "summary.csv")
FILES = (
    *REQUIRED, "machine.json", "exactness.csv", "fairness.csv", "roofline.csv", "quality.csv",
    "preference.csv", "clip_pairs.csv", "judged.json",
)  # fmt: skip
TABLES = ("table.csv", "table.md")  # of the report: in report/, in a published run with the rest
OF_ROWS = (
    "git_commit", "git_dirty", "threads", "started_at", "schema_version", "decoder", "protocol",
    "status", "prompt_hash", "image", "cpu", "gpu",
)  # fmt: skip
KINDS = {
    "format": int, "study": str, "schema_version": int, "config_hash": str, "commits": list[str],
    "dirty": bool, "machine": dict[str, Any], "fingerprint": str, "started": list[str],
    "protocols": list[dict[str, Any]], "verdicts": dict[str, str], "left_out": list[str],
    "files": dict[str, str], "seal": str,
}  # fmt: skip
NOT_A_RULE = ("path", "shard")  # of prompts: where they lay says nothing of them


@dataclass(frozen=True)
class Record:
    """A record whose files are as it says. folder: where it lies; said: run.json."""

    folder: Path
    said: dict[str, Any]


def write_record(folder: Path) -> Path:
    """run.json of a finished run, whole or absent; returns its path. Raises FolderError."""
    return write_text(folder / FILE, json.dumps(record_of(folder), indent=1) + "\n")


def record_of(folder: Path, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """What run.json says of a finished run. Raises FolderError where a file is missing."""
    lacking = [name for name in REQUIRED if not (folder / name).is_file()]
    if lacking:
        raise FolderError(
            f"{folder} holds no finished run: {', '.join(lacking)} missing. `python -m bench run` "
            "with the words of that run makes what is missing"
        )
    study = read_identity(folder)
    rows = read_rows(folder, OF_ROWS)
    for part in ("cpu", "gpu"):
        made_on = sorted({*rows[part], study["machine"].get(part, "")})
        if len(made_on) > 1:
            raise FolderError(f"{folder} is of several machines: {part} {' and '.join(made_on)}")
    machine = {**study["machine"], "threads": sorted({int(n) for n in rows.threads})}
    body = {
        "format": FORMAT,
        "study": str(study["config"].get("name", "")),
        "schema_version": int(rows.schema_version.iloc[0]),
        "config_hash": digest(study["config"]),
        "commits": sorted(set(rows.git_commit)),
        "dirty": bool(rows.git_dirty.any()),
        "machine": machine,
        "fingerprint": digest(machine),
        "started": [min(rows.started_at), max(rows.started_at)],
        "protocols": _protocols(judged(folder), rows, study["config"].get("prompts") or {}),
        "verdicts": {g["decoder"]: g["verdict"] for g in lines_of(folder / "exactness.csv")},
        "left_out": [*left_out],
        "files": {str(p.relative_to(folder)): sha256_of(p) for p in files_of(folder)},
    }
    return {**body, "seal": _seal(body)}


def files_of(folder: Path) -> list[Path]:
    """The files of a run folder, or of a published one, that its record vouches for."""
    tables = [place / name for name in TABLES for place in (folder / "report", folder)]
    return [p for p in (*(folder / name for name in FILES), *tables) if p.is_file()]


def _protocols(
    figures: Mapping[str, Any], rows: pd.DataFrame, prompts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Groups of decoders whose quality was measured in the same way: {"decoders": [...], lines},
    all that two quality figures must share to be compared. [] where nothing was scored.

    Lines: `images` (N), `prompts` with `captions` (the rule) and `prompts_hash` (of their texts),
    and what the scorer says (`bench.judge.quality.Scores.protocol`).
    """
    drawn = rows[(rows.protocol == "quality") & (rows.status == "ok") & (rows.image != "")]
    rule = (prompts.get("kwargs") or {}).items()
    words = [f"{k}={v}" for k, v in sorted(rule) if k not in NOT_A_RULE and v is not None]
    groups: dict[str, dict[str, Any]] = {}
    for name, own in drawn.groupby("decoder", sort=False):
        if name not in figures:
            continue
        lines = {
            "images": len(own),
            "prompts": str(prompts.get("name", "")),
            "captions": ", ".join(words) or "as they are",
            "prompts_hash": digest(sorted(own.prompt_hash)),
            **figures[str(name)]["value"]["scores"].get("protocol", {}),
        }
        groups.setdefault(digest(lines), {"decoders": [], **lines})["decoders"].append(str(name))
    return list(groups.values())


def read_record(path: Path) -> Record:
    """A run.json that says what the files beside it say, made of them once more. Raises FolderError
    that names the file which is not as it was, or the key."""
    try:
        said = read_json(path, KINDS, [*KINDS])
    except FileNotFoundError:
        raise FolderError(f"{path} does not exist; `python -m bench report` writes it") from None
    if said["format"] != FORMAT:
        raise FolderError(
            f"{path} is a record of format {said['format']}, this program reads {FORMAT}: read it "
            "with the version of lantern-bench that wrote it"
        )
    if said["seal"] != _seal({key: value for key, value in said.items() if key != "seal"}):
        raise FolderError(f"{path} was changed after it was written: its seal does not match")
    folder = path.parent
    refuse_links(folder)
    for name, expected in said["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise FolderError(f"{path} names a file outside its folder: {name}")
        if not (file := folder / name).is_file():
            raise FolderError(f"{file} is missing, and {FILE} beside it has its hash; copy it too")
        if (found := sha256_of(file)) != expected:
            raise FolderError(
                f"{file} is not as it was recorded: SHA-256 {found[:12]}..., {FILE} says "
                f"{expected[:12]}...; copy it again from where the run was made"
            )
    made = record_of(folder, tuple(said["left_out"]))
    for name in (n for n in FILES if n in made["files"] and n not in said["files"]):
        raise FolderError(f"{path} has no hash of {name}, which lies beside it; remove that file")
    for key in (key for key in KINDS if key not in ("files", "seal") and made[key] != said[key]):
        raise FolderError(f"{path}: what it says of {key} is not what the files beside it say")
    return Record(folder, said)


def _seal(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
