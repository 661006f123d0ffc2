"""Read `records.parquet` and `summary.csv` of a run folder, checked, into a `Run`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.judge.clip_pairs import COLUMNS as CLIP_COLUMNS
from bench.judge.clip_pairs import TABLE as CLIP_PAIRS
from bench.judge.clip_pairs import with_differences
from bench.judge.fairness import ROOFLINE, Fairness
from bench.judge.fairness import TABLE as FAIRNESS
from bench.judge.reseeds import reseed_of
from bench.measure.rates import MACHINE, read_rates
from bench.records.schema import LOAD, READABLE, damaged, frame, other_version
from bench.report.model import Entry, ReportError, Role, Run, Section, as_text, missing

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
PHASES = ("text", "prefill", "draft", "forward", "accept", "vq")
PROVENANCE = (
    "git_commit", "git_dirty", "versions", "cpu", "gpu", "threads", "config_hash", "weights_hash",
    "prompt_hash", "started_at",
)  # fmt: skip
RECORD_COLUMNS = (
    "schema_version", "study", "protocol", "model", "decoder", "loop", "tree", "acceptance",
    "backend", "device", "dtype", "temperature", "cfg", "prompt_index", "prompt", "seed", "block",
    "repeat", "status", "error",
    *(f"seconds_{phase}" for phase in PHASES), "seconds_total", *LOAD, "mal", "nfe",
    "tree_depth",
    "accepted", "kind", "step", "codes", "moved", "bound", "tv_output", "tv_declared_bound",
    "tv_output_bound",
    "path", "image", *PROVENANCE,
)  # fmt: skip


ROOFLINE_COLUMNS = (
    "decoder", "codes", "images", "accept_share", "note",
    *(f"{part}_{figure}" for part in ("step", "ar", "forward", "draft")
      for figure in ("ms", "floor_ms", "over_floor")),
    "ar_bytes", "ar_operations", "forward_bytes", "forward_operations",
    "bytes_per_s", "large_bytes_per_s", "operations_per_s",
)  # fmt: skip
FAIRNESS_COLUMNS = ("decoder", "verdict", "reason", "factor", "mixed")


def load_run(run_dir: Path) -> Run:
    """`records.parquet` and `summary.csv` of a run folder, and what there is of roofline.csv,
    fairness.csv, machine.json and clip_pairs.csv (runs that timed nothing, or have no CLIP scores
    to compare, and older ones, lack them).

    Raises ReportError on a missing, unreadable, empty or incomplete file.
    """
    if run_dir.is_file():
        raise ReportError(f"{run_dir} is a file; name the folder of a run")
    if not run_dir.is_dir():
        raise ReportError(
            f"no run folder {run_dir}: run a study first (python -m bench run study=...)"
        )
    records = _read_records(run_dir / "records.parquet")  # first: it tells another version
    summary = _read_summary(run_dir / "summary.csv")
    summary = _with_unsummarised(summary, records)
    differences = _optional(run_dir / CLIP_PAIRS, tuple(CLIP_COLUMNS))
    summary = with_differences(summary, pd.DataFrame(differences, columns=CLIP_COLUMNS))
    entries = [
        _entry({str(k): v for k, v in row.items()}, records) for row in summary.to_dict("records")
    ]
    study = as_text(summary["study"].iloc[0]) or run_dir.name
    floors = _optional(run_dir / ROOFLINE, ROOFLINE_COLUMNS)
    fairness = _optional(run_dir / FAIRNESS, FAIRNESS_COLUMNS, ("worth",))
    return Run(
        run_dir,
        study,
        _sections(entries),
        records,
        roofline={str(line["decoder"]): line for line in floors},
        fairness={f.decoder: f for f in (Fairness(**line) for line in fairness)},
        machine=read_rates(run_dir / MACHINE),
    )


def _optional(
    path: Path, columns: tuple[str, ...], later: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The rows of a table with these columns, and with those of `later`, which older files lack; []
    where there is no such file. ReportError where it is damaged."""
    if not path.is_file():
        return []
    try:
        words = {name: str for name in ("decoder", "baseline", "reason", "note", "mixed")}
        table = pd.read_csv(path, dtype=words, keep_default_na=False, na_values=[""])
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} is not a readable table ({error}); {_REMEDY}") from error
    _require_columns(path, columns, list(table.columns))
    for name in words.keys() & set(columns):
        table[name] = table[name].fillna("")
    kept = [*columns, *(name for name in later if name in table)]
    return [{str(k): line[k] for k in kept} for line in table.to_dict("records")]


def _read_summary(path: Path) -> pd.DataFrame:
    _require(path)
    try:
        # Only empty cells are missing: a part may well be called "none" or "null".
        table = pd.read_csv(path, keep_default_na=False, dtype=str)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} is not a readable table ({error}); {_REMEDY}") from error
    _require_columns(path, (*SUMMARY_TEXT, *SUMMARY_NUMBERS), list(table.columns))
    if table.empty:
        raise ReportError(f"{path} has no rows: nothing was measured yet; {_REMEDY}")
    for column in SUMMARY_NUMBERS:
        blank = table[column].str.strip().str.lower().isin({"", "nan", "none"})
        try:
            table[column] = table[column].mask(blank).astype(float)
        except ValueError as error:
            raise ReportError(
                f"{path}: column {column} holds a non-number ({error}); {_REMEDY}"
            ) from error
    return table


def _read_records(path: Path) -> pd.DataFrame:
    import pyarrow
    import pyarrow.parquet

    _require(path)
    if damaged(path):
        raise ReportError(f"{path} is damaged: it is not as it was written; {_REMEDY}")
    try:
        names = pyarrow.parquet.read_schema(path).names
        if not {*RECORD_COLUMNS} <= {*names, *LOAD} and (wrong := other_version(path)):
            raise ReportError(wrong)
        _require_columns(path, RECORD_COLUMNS, [*names, *LOAD])
        records = frame(path, RECORD_COLUMNS)
        if {*records["schema_version"]} - {*READABLE}:
            raise ReportError(other_version(path))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowIOError) as error:
        raise ReportError(f"{path} is not a readable Parquet file ({error}); {_REMEDY}") from error
    if records.empty:
        raise ReportError(f"{path} has no rows: no image was decoded yet; {_REMEDY}")
    return records


_REMEDY = "run `python -m bench run study=...` again: it resumes and writes what is missing"


def _require(path: Path) -> None:
    if not path.is_file():
        raise ReportError(f"{path} is missing; {_REMEDY}")


def _require_columns(path: Path, wanted: tuple[str, ...], found: list[str]) -> None:
    missing = [column for column in wanted if column not in found]
    if missing:
        raise ReportError(f"{path} lacks the columns {', '.join(missing)}; {_REMEDY}")


def _with_unsummarised(summary: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Adds a row without figures for decoders that only the records know: none may go missing."""
    known = set(summary["decoder"])
    rows: list[dict[str, Any]] = []
    for name, group in records.groupby("decoder", sort=False):
        if name in known:
            continue
        failed = bool((group["status"] == "failed").all())
        row: dict[str, Any] = dict.fromkeys(SUMMARY_TEXT, "") | dict.fromkeys(
            SUMMARY_NUMBERS, math.nan
        )
        shared = [column for column in records.columns if column in summary.columns]
        row |= {column: group[column].iloc[0] for column in shared if column != "mal"}
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
