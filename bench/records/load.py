"""The one reader of runs: `load(run)` is what a run folder holds, checked, as a `RunData`.

A report and a paired comparison need all of a finished run. The comparison with published numbers
and the leaderboard also take the tables of older versions, and those published without rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.cost.rates import MACHINE, read_rates
from bench.data.errors import FolderError
from bench.judge.fairness import COLUMNS as FAIRNESS_COLUMNS
from bench.judge.fairness import ROOFLINE, Fairness
from bench.judge.fairness import TABLE as FAIRNESS
from bench.judge.paired import CLIP_COLUMNS, CLIP_PAIRS, reseed_of, with_differences
from bench.records.kept import today
from bench.records.run_data import Entry, Role, RunData, Section, as_text, missing
from bench.records.schema import LOAD, READABLE, SCHEMA, damaged, frame, other_version

Rows = Literal["needed", "if there", "no"]
ROWS = "records.parquet"
SECTION_KEYS = ("model", "backend", "device", "dtype", "temperature", "cfg")
NO_PART = {"", "none", "null", "-", "nan"}

SUMMARY_TEXT = (
    "study", "model", "decoder", "acceptance", "tree", "backend", "device", "dtype", "fid_features",
    "exactness", "status",
)  # fmt: skip
SUMMARY_NUMBERS = (
    "temperature", "cfg", "n_latency", "latency_mean_s", "latency_p50_s", "latency_p95_s",
    "speedup", "speedup_lo", "speedup_hi", "mal", "mal_no_bonus", "mal_expected", "nfe",
    "n_quality",
    "fid", "fid_lo", "fid_hi", "kid", "precision", "recall", "clip", "clip_lo", "clip_hi",
    "tv_bound", "tv_moved_mean", "tv_moved_max", "tv_output", "tv_output_bound",
    "tv_declared_bound", "peak_memory_mb",
)  # fmt: skip
# Without these a table is no summary of a run, of whatever version.
CORE = (
    "study", "model", "decoder", "acceptance", "tree", "device", "status", "temperature", "cfg",
    "n_latency", "n_quality", "latency_mean_s", "speedup", "mal",
)  # fmt: skip
PHASES = ("text", "prefill", "draft", "forward", "accept", "vq")
PROVENANCE = (
    "git_commit", "git_dirty", "versions", "cpu", "gpu", "threads", "config_hash", "weights_hash",
    "prompt_hash", "started_at",
)  # fmt: skip
UNREAD = ("depth", "sources")  # columns of every code and long ones, of which nothing is made
RECORD_COLUMNS = tuple(name for name in SCHEMA.names if name not in UNREAD)
ROOFLINE_COLUMNS = (
    "decoder", "codes", "images", "accept_share", "note",
    *(f"{part}_{figure}" for part in ("step", "ar", "forward", "draft")
      for figure in ("ms", "floor_ms", "over_floor")),
    "ar_bytes", "ar_operations", "forward_bytes", "forward_operations",
    "bytes_per_s", "large_bytes_per_s", "operations_per_s",
)  # fmt: skip
LATER = ("mixed", "worth")  # columns that older files lack
WORDS = {"decoder", "baseline", "verdict", "reason", "note", "mixed"}  # else a column of numbers
_REMEDY = "run `python -m bench run study=...` again: it resumes and writes what is missing"


def load(run: Path, rows: Rows = "needed") -> RunData:
    """A run folder, and what there is of roofline.csv, fairness.csv, quality.csv, machine.json and
    clip_pairs.csv (runs that timed or scored nothing, and older ones, lack them).

    rows: "needed" for a finished run of this version, with records.parquet and every column of the
    summary; else also tables of other versions (what they lack is unknown), by their folder or
    their summary.csv, with records.parquet "if there" or not read.
    Raises FolderError on a missing, unreadable, empty or incomplete file.
    """
    whole = rows == "needed"
    if whole and run.is_file():
        raise FolderError(f"{run} is a file; name the folder of a run")
    named = run.is_file() or (run.suffix == ".csv" and not run.is_dir())
    path = run if named else run / "summary.csv"
    folder = path.parent
    if whole and not folder.is_dir():
        raise FolderError(
            f"no run folder {folder}: run a study first (python -m bench run study=...)"
        )
    wanted = whole or (rows == "if there" and (folder / ROWS).is_file())
    records = read_rows(folder) if wanted else pd.DataFrame(columns=[*RECORD_COLUMNS])
    summary = _with_unsummarised(_read_summary(path, whole), records)
    differences = _optional(folder / CLIP_PAIRS, CLIP_COLUMNS) if whole else []
    summary = with_differences(summary, pd.DataFrame(differences, columns=CLIP_COLUMNS))
    fairness = _optional(folder / FAIRNESS, FAIRNESS_COLUMNS)
    found = RunData(
        folder,
        as_text(summary["study"].iloc[0]) or folder.name,
        _sections([_entry(line, records) for line in _lines(summary)]),
        records,
        quality=_by_decoder(_quality(folder / "quality.csv")),
        fairness={line["decoder"]: Fairness(**line) for line in fairness},
    )
    if not whole:
        return found
    roofline = _by_decoder(_optional(folder / ROOFLINE, ROOFLINE_COLUMNS))
    return replace(found, roofline=roofline, machine=read_rates(folder / MACHINE))


def read_rows(folder: Path) -> pd.DataFrame:
    """records.parquet of a run: `RECORD_COLUMNS`. Raises FolderError."""
    path = folder / ROWS
    _require(path)
    if damaged(path):
        raise FolderError(f"{path} is damaged: it is not as it was written; {_REMEDY}")
    try:
        names = pq.read_schema(path).names
        if not {*RECORD_COLUMNS} <= {*names, *LOAD} and (wrong := other_version(path)):
            raise FolderError(wrong)
        _require_columns(path, RECORD_COLUMNS, [*names, *LOAD])
        records = frame(path, RECORD_COLUMNS)
        if {*records["schema_version"]} - {*READABLE}:
            raise FolderError(other_version(path))
    except (pa.ArrowInvalid, pa.ArrowIOError) as error:
        raise FolderError(f"{path} is damaged: no readable Parquet ({error}); {_REMEDY}") from error
    if records.empty:
        raise FolderError(f"{path} has no rows: no image was decoded yet; {_REMEDY}")
    return records


def read_table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """A table of a run as texts. Raises FolderError: missing, unreadable, without such a column."""
    _require(path)
    try:
        # Only empty cells are missing: a part may well be called "none" or "null".
        table = pd.read_csv(path, keep_default_na=False, dtype=str)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise FolderError(f"{path} is not a readable table ({error}); {_REMEDY}") from error
    _require_columns(path, columns, list(table.columns))
    return table


def _numbered(path: Path, table: pd.DataFrame, columns: Collection[str]) -> pd.DataFrame:
    """The table with numbers in these columns, NaN in empty cells."""
    table = table.copy()
    for column in columns:
        blank = table[column].str.strip().str.lower().isin({"", "nan", "none"})
        try:
            table[column] = table[column].mask(blank).astype(float)
        except ValueError as error:
            raise FolderError(
                f"{path}: column {column} holds a non-number ({error}); {_REMEDY}"
            ) from error
    return table


def _optional(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a table with these columns; [] where there is no such file."""
    if not path.is_file():
        return []
    table = read_table(path, [name for name in columns if name not in LATER])
    there = [name for name in columns if name in table]
    return _lines(_numbered(path, table[there], [name for name in there if name not in WORDS]))


def _lines(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in line.items()} for line in table.to_dict("records")]


def _quality(path: Path) -> list[dict[str, Any]]:
    """quality.csv, which has columns for what was scored alone."""
    if not path.is_file():
        return []
    table = read_table(path, ["decoder"])
    words = ("decoder", *(name for name in table if str(name).endswith("_features")))
    figures = [str(name) for name in table if name not in words]
    return _lines(_numbered(path, table, figures))


def _by_decoder(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {str(line["decoder"]): line for line in lines}


def _read_summary(path: Path, whole: bool) -> pd.DataFrame:
    """whole: with every column; else what `CORE` lacks is unknown where it is not there."""
    every = (*SUMMARY_TEXT, *SUMMARY_NUMBERS)
    table = read_table(path, every if whole else CORE)
    if table.empty:
        raise FolderError(f"{path} has no rows: nothing was measured yet; {_REMEDY}")
    table = table.assign(**{name: "" for name in every if name not in table})
    return _numbered(path, table.assign(exactness=table.exactness.map(today)), SUMMARY_NUMBERS)


def _require(path: Path) -> None:
    if not path.is_file():
        raise FolderError(
            f"there is no {path}, so {path.parent} holds no finished run; run the study first "
            "(`python -m bench run study=...` resumes and writes what is missing), or name the "
            "folder of another run"
        )


def _require_columns(path: Path, wanted: Sequence[str], found: list[str]) -> None:
    lacking = [column for column in wanted if column not in found]
    if lacking:
        raise FolderError(f"{path} lacks the columns {', '.join(lacking)}; {_REMEDY}")


def _with_unsummarised(summary: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Adds a row without figures for decoders that only the records know: none may go missing."""
    known = set(summary["decoder"])
    rows: list[dict[str, Any]] = []
    for name, group in records.groupby("decoder", sort=False):
        if name in known:
            continue
        failed = bool((group["status"] == "failed").all())
        row: dict[str, Any] = dict.fromkeys(SUMMARY_TEXT, "")
        row |= dict.fromkeys(SUMMARY_NUMBERS, math.nan)
        shared = [*SUMMARY_TEXT, "temperature", "cfg"]
        row |= {column: group[column].iloc[0] for column in shared if column in group}
        row["status"] = "failed" if failed else "failed: not in summary.csv"
        rows.append(row)
    if not rows:
        return summary
    return pd.concat([summary, pd.DataFrame(rows)], ignore_index=True)


def _entry(row: dict[str, Any], records: pd.DataFrame) -> Entry:
    name = as_text(row["decoder"])
    reseed = reseed_of(name)
    mask = records["decoder"] == (reseed[0] if reseed else name)
    mask &= (records["protocol"] == "reseed") == (reseed is not None)
    if reseed:
        seeds = sorted(records[mask]["seed"].unique())
        mask &= records["seed"].isin(seeds[reseed[1] - 1 : reseed[1]])
    for key in SECTION_KEYS:
        if not missing(row[key]):
            mask &= records[key].isna() | (records[key] == row[key])
    mine = records[mask]
    failed = mine[mine["status"] == "failed"]
    errors = [text for text in map(as_text, failed["error"]) if text]
    error = errors[0] if errors else ""
    status = str(row["status"])
    if not error and status.startswith("fail"):
        error = status.partition(":")[2].strip() or "no error was recorded"
    return Entry(name, Role.RESEED if reseed else Role.DECODER, row, mine, error, len(failed))


def _sections(entries: list[Entry]) -> list[Section]:
    """Groups by SECTION_KEYS, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(tuple(as_text(entry.row[key]) for key in SECTION_KEYS), []).append(entry)
    varying = [key for at, key in enumerate(SECTION_KEYS[:4]) if len({g[at] for g in groups}) > 1]
    return [replace(_section(group, varying), of=len(groups)) for group in groups.values()]


def _section(entries: list[Entry], varying: list[str]) -> Section:
    partless = [e for e in entries if e.role is Role.DECODER and e.part_key[0].lower() in NO_PART]
    exact_one = [e for e in partless if e.number("speedup") == 1]
    baseline = next(iter(exact_one or partless), None)
    entries = [replace(e, role=Role.BASELINE) if e is baseline else e for e in entries]
    temperature = entries[0].number("temperature")
    greedy = temperature == 0
    title = "Greedy (temperature 0" if greedy else f"Sampling (temperature {temperature:g}"
    guidance = entries[0].number("cfg")
    title += ")" if math.isnan(guidance) else f", guidance {guidance:g})"
    if varying:
        title += ": " + ", ".join(f"{entries[0].text(key)}" for key in varying)
    features = {e.text("fid_features") for e in entries if e.text("fid_features")}
    suffix = f" ({', '.join(sorted(features))})" if features else ""
    # The embedded model's CLIP is the network its FID features come from: name both after it.
    own_clip = len(features) == 1 and next(iter(features)).endswith("-clip")
    clip = f"CLIP ({next(iter(features)).removesuffix('-clip')})" if own_clip else "CLIP"
    return Section(title, greedy, entries, f"FID{suffix}", clip)
