"""The facts of a run beside its rows. study.json says whose folder it is: rows of two
configurations, schema versions or machines in one folder would be averaged as if they were one
experiment, so such a folder is refused and left as it was. findings.json holds what cannot be
computed from rows: the gate's verdicts, the scores of pictures, the rates of the machine, and the
work of a forward of its target. Each file may be copied alone, so it is checked that both are of
the rows beside them.

study.json has the names of dataclasses; a user wrote `acceptance.k=5` and not
`decoders.lantern.spec.acceptance.kwargs.k`, so messages name settings as a command line does.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench.config.arguments import RUNS
from bench.errors import FolderError
from bench.files import write_text
from bench.measure.roofline import MachineRates, TargetWork
from bench.store.columns import MERGED, SCHEMA_VERSION
from decoders.errors import DecoderError
from decoders.files import parse_json, read_object, read_text
from decoders.kinds import Amount, Count, validate, validate_entries
from metrics.scores import SHARE, Scores

STUDY, FINDINGS = "study.json", "findings.json"
OLDER_SHARES = ("precision", "recall")
OLDER_FIGURES = ("fid", "fid_debiased", "kid", "precision", "recall", "clip", "hps")
STUDY_ENTRIES = {  # of study.json, and what each must be
    "schema_version": int,
    "config_hash": str,
    "rows": Amount,
    "command": str,
    "config": dict[str, Any],
    "machine": dict[str, str],
    "code": dict[str, str],
    "weights": dict[str, str],
}
CONFIG_ENTRIES = {"version": Count, "decoders": list[dict[str, Any]], "quality": dict[str, Any]}
MOST_DIFFERENCES, MOST_CHARACTERS = 8, 60  # in a message, of a value
CHOSEN_BY_NAME = ("model", "backend", "prompts")  # another name explains all below it
RuleAlone = Literal["exact rule", "relaxed rule", "no rule"]  # of a rule without its loop
Word = Literal["exact", "relaxed", "broken", "synthetic", "not checked"] | RuleAlone
EITHER = "exact or relaxed"  # what is expected where a study says nothing
ACCEPTABLE = "exact", "relaxed", "synthetic", "no"
AS_TEXT = re.compile(r"([a-z ]+?)( as far as sampled \(TV < (\S+)\)| \(target changed\)| \(TV .+)?")
# Columns that say which image a row is of, and when and with what it was made.
NAMED = ("decoder", "protocol", "batch", "seed", "prompt_index", "started_at", "code")


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
class Verdict:
    """word, for one setting of sampling: `exact` (the target's law, or its tokens), `relaxed` (the
    output law differs, and the rule declares it), `broken` (a claim is false), `synthetic` (drafts
    are accepted at given rates), `not checked` (the gate itself failed); `... rule` where no loop
    was looked at. figure: the largest output TV on small random models, in [0, 1] (greedy: the
    largest TV shift of an accepted draft). expected: the word that it should be. sampled: the least
    TV that samples would have shown, 0 where the law was enumerated to the end; sampled_length: in
    images of so many codes, 0 of runs that do not say it. changed: the loop
    is made for other targets and was judged on an ordinary one, and the figure is NaN. checks:
    their results (`bench.gate.result.Check`), which are not stored."""

    word: Word
    detail: str
    figure: float = math.nan
    expected: str = EITHER
    sampled: float = 0.0
    sampled_length: int = 0
    changed: bool = False
    checks: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """A table's cell. A relaxed rule shows no figure: its worst node belongs to a small random
        model."""
        if self.word == "broken" and self.figure:
            return f"broken (TV {self.figure:.4f})"
        if self.word == "exact" and self.sampled:
            images = f" in images of {self.sampled_length} codes" * bool(self.sampled_length)
            return f"exact as far as sampled (TV < {self.sampled:.2g}{images})"
        return self.word + " (target changed)" * self.changed

    @property
    def as_expected(self) -> bool:
        word = self.word.removesuffix(" rule")
        return word == self.expected or word in (ACCEPTABLE if self.expected == EITHER else ("no",))

    @property
    def line(self) -> dict[str, Any]:
        """Its line of exactness.csv."""
        return {name: getattr(self, name) for name in ("text", "detail", "figure", "expected")}


def stored_verdict(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a stored verdict. Runs before version 0.4 have the text in place of the word
    and of what it is made of."""
    fields = dict(entries)
    match = AS_TEXT.fullmatch(fields.pop("text", ""))
    if match is not None:
        fields |= {"word": match[1], "sampled": float(match[3] or 0)}
        fields["changed"] = match[2] == " (target changed)"
    return fields


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
    interval: `fid`, `fid_lo`, `fid_hi`, or did not say which figures are shares."""
    if "figures" not in scores:
        figures = dict[str, dict[str, Any]]()
        for name in (one for one in OLDER_FIGURES if one in scores):
            prefix = "prc" if name in OLDER_SHARES else name
            features = scores.get(f"{prefix}_features") or scores.get("fid_features", "")
            ends = {x: scores[f"{name}_{x}"] for x in ("lo", "hi") if f"{name}_{x}" in scores}
            each = scores.get(f"{name}_each", ())
            figures[name] = {"value": scores[name], **ends, "each": each, "features": features}
        scores = {"figures": figures, "protocol": scores.get("protocol", {})}
    for name in OLDER_SHARES if isinstance(scores["figures"], dict) else ():
        if isinstance(figure := scores["figures"].get(name), dict):
            figure["unit"] = figure.get("unit") or SHARE
    return scores


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


def digest_of_rows(rows: pd.DataFrame) -> str:
    """16 hex digits of which images the rows of records.parquet are of, when they were made, and
    their codes."""
    made = hashlib.sha256(repr(rows[[*NAMED]].to_numpy(str).tolist()).encode())
    made.update(rows.codes.map(len).to_numpy(np.int64).tobytes())
    made.update(np.concatenate([[], *rows.codes]).astype(np.int32).tobytes())
    return made.hexdigest()[:16]


def require_together(
    folder: Path, rows: pd.DataFrame, study: Mapping[str, Any], findings: Findings
) -> None:
    """Raises FolderError where study.json or findings.json is of other rows than these. What an
    older version wrote says less, and is taken as far as it goes."""
    advice = f"copy the files of one run into {folder}, or run the study again: it resumes"
    config = study.get("config_hash")
    if config is not None and (other := sorted({*rows.config_hash} - {config})):
        raise FolderError(
            f"{STUDY} and {MERGED} in {folder} do not belong together: the one is of the "
            f"configuration {config}, the other of {other[0]}; {advice}"
        )
    if findings.rows and findings.rows != (digest := digest_of_rows(rows)):
        raise FolderError(
            f"{FINDINGS} and {MERGED} in {folder} do not belong together: the verdicts and scores "
            f"are of rows with the digest {findings.rows}, these rows have {digest}; {advice}"
        )
