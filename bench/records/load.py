"""Reads runs: `load(run)` checks what a run folder holds and returns it as a `RunData`.

A FolderError says what is wrong with which file. Callers need not check a table again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.errors import FolderError
from bench.judge import paired
from bench.judge.fairness import FAIRNESS, ROOFLINE, ROOFLINE_COLUMNS, Fairness
from bench.judge.paired import CLIP_COLUMNS, CLIP_PAIRS
from bench.measure.roofline import MACHINE, read_rates
from bench.records import columns
from bench.records.run_data import MARGIN, Entry, Role, RunData, Section, as_text
from bench.records.study import STUDY, read_study

SECTION_KEYS = ("temperature", "cfg")  # by which decoders of a run differ and do not compare
REMEDY = (
    "run `python -m bench run study=...` again: it resumes and writes what is missing; of a copied "
    "folder, copy it once more"
)
EXACTNESS = "exactness.csv"  # what the gate says
JUDGED = "judged.json"  # scores by decoder, those of every image too
SUMMARY = [column.name for column in columns.SUMMARY]
TEXTS = {"baseline", "verdict", "reason", "mixed", "note", "detail"}  # others hold numbers
TEXTS |= {column.name for column in columns.SUMMARY if column.type == "text"}
PHASES = ("text", "prefill", "draft", "forward", "accept", "vq")
PROVENANCE = (
    "git_commit", "git_dirty", "versions", "cpu", "gpu", "threads", "config_hash", "started_at",
)  # fmt: skip
RECORD_COLUMNS = tuple(name for name in columns.SCHEMA.names if name != "depth")  # of no figure


def load(folder: Path) -> RunData:
    """Reads a finished run, and what there is of roofline.csv, fairness.csv, exactness.csv,
    judged.json, machine.json and clip_pairs.csv (which runs that timed, checked or scored nothing
    lack). Raises FolderError on a missing, unreadable, empty or incomplete file."""
    records = read_rows(folder / columns.MERGED)
    require_file(folder / STUDY)
    path = folder / "summary.csv"
    summary = read_table(path, SUMMARY)
    if summary.empty:
        raise FolderError(f"{path} has no rows: nothing was measured yet; {REMEDY}")
    floors = read_lines(folder / ROOFLINE, ROOFLINE_COLUMNS)
    fair = read_lines(folder / FAIRNESS, Fairness.__dataclass_fields__)
    checked = read_lines(folder / EXACTNESS, ("decoder", "detail"))
    return make_run(
        folder,
        records,
        summary,
        clip_pairs=read_lines(folder / CLIP_PAIRS, CLIP_COLUMNS),
        roofline={line["decoder"]: line for line in floors},
        scores=read_scores(folder),
        fairness={line["decoder"]: Fairness(**line) for line in fair},
        gate={line["decoder"]: line["detail"] for line in checked},
        machine=read_rates(folder / MACHINE),
    )


def make_run(
    folder: Path,
    records: pd.DataFrame,
    summary: pd.DataFrame,
    clip_pairs: Sequence[dict[str, Any]] = (),
    **tables: Any,
) -> RunData:
    """Builds the `RunData` of these rows and this summary. tables: its other fields."""
    summary = paired.with_differences(summary, pd.DataFrame(clip_pairs, columns=CLIP_COLUMNS))
    study = read_study(folder)
    config = study.get("config", {})
    margin = float(config.get("quality", {}).get("margin", MARGIN))
    baselines = {entry["name"] for entry in config.get("decoders", ()) if entry["baseline"]}
    rows: dict[str, pd.DataFrame] = {}
    for decoder in records["decoder"].unique():
        rows |= paired.rows_by_line(decoder, records)
    no_rows = records.iloc[:0]
    entries = [_entry(line, rows.get(line["decoder"], no_rows)) for line in to_dicts(summary)]
    sections = _sections(entries, baselines, margin)
    name = as_text(summary["study"].iloc[0]) or folder.name
    return RunData(folder, name, sections, records, study, **tables)


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


def read_scores(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads judged.json: decoder -> its `bench.judge.scorers.Scores`, with those of every image; {}
    where none were made. Raises FolderError."""
    path = folder / JUDGED
    if not path.is_file():
        return {}
    try:
        scores = json.loads(path.read_bytes())
    except ValueError as error:
        raise FolderError(f"{path} is damaged ({error}); {REMEDY}") from error
    if not isinstance(scores, dict) or not all(isinstance(one, dict) for one in scores.values()):
        raise FolderError(f"{path} is damaged: expected the scores of each decoder; {REMEDY}")
    return scores


def _entry(row: dict[str, Any], records: pd.DataFrame) -> Entry:
    """Makes the entry of a summary row. records: of its decoder under its seed."""
    name = as_text(row["decoder"])
    errors = records[records["status"] == "failed"]["error"].to_list()
    role = Role.RESEED if paired.is_reseed(name) else Role.DECODER
    return Entry(name, role, row, records, next(iter(errors), ""), len(errors))


def _sections(entries: list[Entry], baselines: set[str], margin: float) -> list[Section]:
    """Groups entries by SECTION_KEYS, in order of first appearance. baselines: by study.json."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(tuple(as_text(entry.row[key]) for key in SECTION_KEYS), []).append(entry)
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


def read_lines(path: Path, names: Collection[str]) -> list[dict[str, Any]]:
    """Reads a table with these columns, a dict per row; [] where there is no such file."""
    return to_dicts(read_table(path, names)[[*names]]) if path.is_file() else []


def to_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Turns a table into a dict per row."""
    return [{str(k): v for k, v in line.items()} for line in table.to_dict("records")]


def read_table(path: Path, names: Collection[str]) -> pd.DataFrame:
    """Reads texts and numbers, NaN in empty cells. Raises FolderError where the file is missing or
    unreadable, lacks one of these columns, or has text in a column of numbers."""
    require_file(path)
    numbers = [name for name in names if name not in TEXTS]
    try:
        # In a column of texts nothing is missing: a part may well be called "none" or "null".
        table = pd.read_csv(
            path,
            dtype=dict.fromkeys(names, str) | dict.fromkeys(numbers, float),
            na_values={name: ["", "nan"] for name in numbers},
            keep_default_na=False,
            index_col=False,
        )
    except ValueError as error:  # empty, no table, no UTF-8, text for a number
        raise FolderError(f"{path} is not a readable table ({error}); {REMEDY}") from error
    require_columns(path, names, [*table.columns])
    return table


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
