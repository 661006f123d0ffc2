"""The facts of a run beside its rows. study.json says whose folder it is: rows of two
configurations, schema versions or machines in one folder would be averaged as if they were one
experiment, so such a folder is refused and left as it was. findings.json holds what cannot be
computed from rows: the gate's reports, the scores of pictures, the rates of the machine, and the
work of a forward of its target.

study.json has the names of dataclasses; a user wrote `acceptance.k=5` and not
`decoders.lantern.spec.acceptance.kwargs.k`, so messages name settings as a command line does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.config.arguments import RUNS
from bench.errors import FolderError
from bench.files import write_text
from bench.measure.roofline import MachineRates, TargetWork
from bench.store.columns import SCHEMA_VERSION
from bench.store.verdict import Verdict, stored_verdict
from decoders.errors import DecoderError
from decoders.files import parse_json, read_object, read_text
from decoders.kinds import Amount, Count, validate, validate_entries
from metrics.scores import Scores

STUDY, FINDINGS = "study.json", "findings.json"
NAN = math.nan
OLDER_FIGURES = ("fid", "fid_debiased", "kid", "precision", "recall", "clip", "hps")
STUDY_ENTRIES = {  # of study.json, and what each must be
    "schema_version": int, "config_hash": str, "rows": Amount, "command": str,
    "config": dict[str, Any], "machine": dict[str, str],
    "code": dict[str, str], "weights": dict[str, str],
}  # fmt: skip
CONFIG_ENTRIES = {"version": Count, "decoders": list[dict[str, Any]], "quality": dict[str, Any]}
MOST_DIFFERENCES, MOST_CHARACTERS = 8, 60  # in a message, of a value
CHOSEN_BY_NAME = ("model", "backend", "prompts")  # another name explains all below it


def read_study(folder: Path) -> dict[str, Any]:
    """Reads study.json of a folder; {} where there is none. Raises FolderError on a damaged one."""
    # A listing, since a shared file system may know a new file there before `exists` does.
    if not folder.is_dir() or STUDY not in {path.name for path in folder.iterdir()}:
        return {}
    path = folder / STUDY
    try:
        study = read_object(path, STUDY_ENTRIES)
        if "config" in study:
            study["config"] = validate_entries(study["config"], CONFIG_ENTRIES, "config")
        return study
    except DecoderError as error:
        raise FolderError(f"{path} is damaged: {error}; choose another run_dir=") from error


def write_study(folder: Path, entries: Mapping[str, Any]) -> None:
    """Adds entries to study.json. Shards of a run write the same ones."""
    study = read_study(folder) | dict(entries)
    write_text(folder / STUDY, json.dumps(study, indent=1, sort_keys=True))


def require_same(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Raises FolderError where a folder holds no run, or one of another schema version or
    configuration, or of another machine than `wanted` names."""
    study = read_study(folder)
    if not study:
        raise FolderError(
            f"{folder} holds no run; name the folder of one, or make one by `python -m bench run`"
        )
    advice = (
        "Nothing was changed. Choose another folder (run_dir=..., or name=... for "
        f"{RUNS}/<name>), or delete {folder}"
    )
    if study.get("schema_version") != SCHEMA_VERSION:
        raise FolderError(
            f"{folder} holds rows of schema version {study.get('schema_version')}, this code "
            f"writes {SCHEMA_VERSION}. {advice}"
        )
    stored, config = study.get("config", {}), wanted["config"]
    if study.get("config_hash") != wanted["config_hash"]:
        if stored.get("name", config.get("name")) != config.get("name"):
            raise FolderError(
                f"{folder} holds the study {stored['name']}, asked for is {config.get('name')}; "
                f"add study={stored['name']} (and the other settings of that run) to go on with "
                f"it. {advice}"
            )
        raise FolderError(
            f"{folder} holds another configuration: {differences(stored, config)}. {advice}, or "
            "ask for the settings that are there to go on with it"
        )
    if "machine" in wanted and study.get("machine") != wanted["machine"]:
        shown = differences(study.get("machine", {}), wanted["machine"], ("there", "here"))
        raise FolderError(
            f"{folder} was measured on another machine, and times of two machines do not compare: "
            f"{shown}. {advice}"
        )


def differences(
    stored: Mapping[str, Any],
    wanted: Mapping[str, Any],
    sides: tuple[str, str] = ("in the folder", "asked for"),
) -> str:
    """Says `latency.prompts: 54 in the folder, 20 asked for; ...`: at most `MOST_DIFFERENCES` and a
    count of the rest, "" where nothing differs. stored, wanted: plain containers; sides: what the
    two are called."""

    def text_of(value: Any) -> str:
        """As in YAML, a long one cut off."""
        if value is None:
            return "not set"
        text = value if isinstance(value, str) and value else json.dumps(value)
        return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2] + " …"

    old, new = dict(stored), json.loads(json.dumps(wanted))
    for group in CHOSEN_BY_NAME:
        names = [side.get(group, {}).get("name") for side in (old, new)]
        if names[0] != names[1]:
            old[group], new[group] = names
    one, other = _settings(old, new), _settings(new, old)
    lines = [
        f"{key}: {text_of(one.get(key))} {sides[0]}, {text_of(other.get(key))} {sides[1]}"
        for key in sorted({**one, **other}, key=lambda key: key not in ("name", "decoders"))
        if one.get(key) != other.get(key)
    ]
    more = len(lines) - MOST_DIFFERENCES
    return "; ".join(lines[:MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _settings(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens a configuration; of its decoders it takes those that the other has too."""
    entries = {entry["name"]: entry for entry in config.get("decoders") or []}
    settings = {**flat(config), "decoders": [*entries]}
    for name in [entry["name"] for entry in other.get("decoders") or []]:
        parts = {**entries.get(name, {}), **entries.get(name, {}).get("spec", {})}
        of_decoder = {key: value for key, value in parts.items() if key not in ("name", "spec")}
        settings |= {f"{key} ({name})": value for key, value in flat(of_decoder).items()}
    return settings


def flat(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flattens nested mappings into dotted names; `target` and `kwargs` of what is imported are
    `_target_` and its keywords, as in YAML."""
    out: dict[str, Any] = {}
    if value.keys() >= {"target", "kwargs"}:
        rest = {key: inner for key, inner in value.items() if key not in ("target", "kwargs")}
        value = {**rest, "_target_": value["target"], **value["kwargs"]}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            out |= flat(inner, f"{above}{key}.")
        else:
            out[f"{above}{key}"] = inner
    return out


@dataclass(frozen=True)
class Findings:
    """gate: by decoder; scores: by line of the summary; done: whether the run was judged and scored
    to its end; rows: the digest of the rows that gate and scores belong to, "" where an older
    version wrote none. None: not measured."""

    machine: MachineRates | None = None
    work: TargetWork | None = None
    gate: dict[str, Verdict] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    done: bool = False
    rows: str = ""


def read_findings(folder: Path) -> Findings:
    """The findings of a run; none where there is no such file. Raises FolderError."""
    path = folder / FINDINGS
    if not path.is_file():
        return Findings()
    try:
        entries = parse_json(read_text(path), str(path))
        older = {"gate": stored_verdict, "scores": figures_by_name}
        for name, update in older.items() if isinstance(entries, dict) else ():
            if isinstance(some := entries.get(name), dict):
                entries[name] = {
                    key: update(one) if isinstance(one, dict) else one for key, one in some.items()
                }
        read: Findings = validate(FINDINGS, entries, Findings)
    except DecoderError as error:
        raise FolderError(
            f"{path} is damaged ({error}); run the study again: it judges and scores what is there"
        ) from error
    return read


def figures_by_name(scores: Mapping[str, Any]) -> Mapping[str, Any]:
    """Scores as they are written now, from those of older runs, which had a key per end of an
    interval: `fid`, `fid_lo`, `fid_hi`."""
    if "figures" in scores:
        return scores
    figures = dict[str, dict[str, Any]]()
    for name in (one for one in OLDER_FIGURES if one in scores):
        prefix = "prc" if name in ("precision", "recall") else name
        features = scores.get(f"{prefix}_features") or scores.get("fid_features", "")
        ends = {end: scores[f"{name}_{end}"] for end in ("lo", "hi") if f"{name}_{end}" in scores}
        each = scores.get(f"{name}_each", ())
        figures[name] = {"value": scores[name], **ends, "each": each, "features": features}
    return {"figures": figures, "protocol": scores.get("protocol", {})}


def write_findings(folder: Path, findings: Findings) -> None:
    """Writes findings.json, without what is not known: NaN is no JSON. Raises FolderError where the
    folder is gone."""
    if not folder.is_dir():
        raise FolderError(f"the run's folder {folder} was removed or renamed; {FINDINGS} is lost")

    def known(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {k: known(v) for k, v in value.items() if not isinstance(v, float) or v == v}

    gate = {name: replace(verdict, checks=()) for name, verdict in findings.gate.items()}
    entries = asdict(replace(findings, gate=gate))
    for verdict in entries["gate"].values():
        del verdict["checks"]
    text = json.dumps(known(entries), indent=1, sort_keys=True, allow_nan=False)
    write_text(folder / FINDINGS, text + "\n")
