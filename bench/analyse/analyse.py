"""A run from its facts: `load(folder)` reads and checks them, `analyse` makes all that follows from
them, the same for a run that is finished and for one in progress. Nothing that it makes is ever
read back: summary.csv and the other tables of a run folder are exports (`bench.analyse.export`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.analyse import fairness, paired
from bench.analyse.run_data import MARGIN, Entry, Role, RunData, Section, as_text
from bench.analyse.summary import summary_of
from bench.data.errors import FolderError
from bench.store import columns
from bench.store.findings import Findings, read_findings
from bench.store.study import STUDY, read_study

REMEDY = (
    "run `python -m bench run study=...` again: it resumes and writes what is missing; of a copied "
    "folder, copy it once more"
)
PHASES = ("text", "prefill", "draft", "forward", "accept", "vq")
PROVENANCE = (
    "git_commit", "git_dirty", "versions", "cpu", "gpu", "threads", "config_hash", "started_at",
)  # fmt: skip
RECORD_COLUMNS = tuple(name for name in columns.SCHEMA.names if name != "depth")  # of no figure


def load(folder: Path) -> RunData:
    """A run from its facts: study.json, records.parquet, findings.json. Raises FolderError where
    one is missing or damaged."""
    records = read_rows(folder / columns.MERGED)
    require_file(folder / STUDY)
    return analyse(folder, records, read_study(folder), read_findings(folder))


def analyse(
    folder: Path,
    records: pd.DataFrame,
    study: dict[str, Any],
    findings: Findings,
    partial: str = "",
) -> RunData:
    """Everything that follows from the facts of a run, finished or in progress: all figures of its
    decoders, which baselines are fair, what is above its floor. folder: of its pictures; partial:
    the status of a decoder that is not done."""
    baselines = paired.baselines_of(study.get("config", {}).get("decoders", ()), records)
    floors = fairness.roofline(records, [*baselines], findings.machine, findings.work)
    fair = fairness.judge(records, baselines, floors)
    unmeasured = {one.decoder for one in fair if one.verdict == fairness.UNMEASURED}
    summary, clip_pairs = summary_of(records, baselines, unmeasured, findings)
    if partial:
        summary = summary.assign(status=summary.status.replace("ok", partial))
    return assembled(folder, records, study, findings, summary, clip_pairs, floors, fair)


def assembled(
    folder: Path,
    records: pd.DataFrame,
    study: dict[str, Any],
    findings: Findings,
    summary: pd.DataFrame,
    clip_pairs: pd.DataFrame,
    floors: pd.DataFrame,
    fair: Sequence[fairness.Fairness],
) -> RunData:
    """A run of these facts and of the tables that were made from them."""
    config = study.get("config", {})
    rows: dict[str, pd.DataFrame] = {}
    for decoder in records["decoder"].unique():
        rows |= paired.rows_by_line(decoder, records)
    lines = to_dicts(paired.with_differences(summary, clip_pairs))
    entries = [_entry(line, rows.get(line["decoder"], records.iloc[:0])) for line in lines]
    margin = float(config.get("quality", {}).get("margin", MARGIN))
    named = {one["name"] for one in config.get("decoders", ()) if one["baseline"]}
    return RunData(
        folder,
        as_text(summary["study"].iloc[0]) or folder.name,
        _sections(entries, named, margin),
        records,
        study,
        roofline={line["decoder"]: line for line in to_dicts(floors)},
        scores={label: asdict(one) for label, one in findings.scores.items()},
        fairness={one.decoder: one for one in fair},
        gate=findings.gate,
        machine=findings.machine,
        clip_pairs=clip_pairs,
    )


def read_rows(path: Path) -> pd.DataFrame:
    """Reads records.parquet, each column cast to its type. Raises FolderError."""
    require_file(path)
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        names = table.schema.names
        versions = {*table["schema_version"].to_pylist()} if "schema_version" in names else set()
        if other := sorted(versions - {columns.SCHEMA_VERSION}):
            raise FolderError(
                f"{path} has rows of schema version {other}, this program reads "
                f"{columns.SCHEMA_VERSION}: read it with the version of lantern-bench that made "
                "it, or run the study again into another run_dir="
            )
        require_columns(path, RECORD_COLUMNS, names)
        table = table.select(RECORD_COLUMNS)
        table = table.cast(pa.schema([columns.SCHEMA.field(name) for name in RECORD_COLUMNS]))
    except (pa.ArrowException, OSError) as error:
        raise FolderError(f"{path} is damaged: no readable Parquet ({error}); {REMEDY}") from error
    rows: pd.DataFrame = table.to_pandas()
    if rows.empty:
        raise FolderError(f"{path} has no rows: no image was decoded yet; {REMEDY}")
    return rows


def _entry(row: dict[str, Any], records: pd.DataFrame) -> Entry:
    """Makes the entry of a summary row. records: of its decoder under its seed."""
    name = as_text(row["decoder"])
    errors = records[records["status"] == "failed"]["error"].to_list()
    role = Role.RESEED if paired.is_reseed(name) else Role.DECODER
    return Entry(name, role, row, records, next(iter(errors), ""), len(errors))


def _sections(entries: list[Entry], baselines: set[str], margin: float) -> list[Section]:
    """Groups entries by paired.SETTING, in order of first appearance. baselines: by study.json."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        setting = tuple(as_text(entry.row[key]) for key in paired.SETTING)
        groups.setdefault(setting, []).append(entry)
    return [_section(group, baselines, margin) for group in groups.values()]


def _section(entries: list[Entry], baselines: set[str], margin: float) -> Section:
    """Marks the baseline of a section, and names the section and its scores."""
    baseline = next((e for e in entries if e.name in baselines), None)  # see `paired.baselines_of`
    entries = [replace(e, role=Role.BASELINE) if e is baseline else e for e in entries]
    temperature = entries[0].number("temperature")
    kind = "Sampling" if temperature else "Greedy"
    title = f"{kind} (temperature {temperature:g}"
    guidance = entries[0].number("cfg")
    title += ")" if math.isnan(guidance) else f", guidance {guidance:g})"
    network = next(filter(None, (e.text("fid_features") for e in entries)), "")
    fid = f"FID ({network})" if network else "FID"
    # The embedded model's CLIP is the network its FID features come from: name both after it.
    clip = f"CLIP ({network.removesuffix('-clip')})" if network.endswith("-clip") else "CLIP"
    return Section(title, entries, fid, clip, margin)


def to_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Turns a table into a dict per row."""
    return [{str(k): v for k, v in line.items()} for line in table.to_dict("records")]


def require_file(path: Path) -> None:
    if not path.is_file():
        raise FolderError(
            f"there is no {path}, so {path.parent} holds no finished run; {REMEDY}, or name the "
            "folder of another run"
        )


def require_columns(path: Path, wanted: Collection[str], present: list[str]) -> None:
    lacking = [column for column in wanted if column not in present]
    if lacking:
        raise FolderError(f"{path} lacks the columns {', '.join(lacking)}; {REMEDY}")
