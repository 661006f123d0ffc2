"""The one reader of runs: `load(run)` is what a run folder holds, checked, as a `RunData`; and what
each of its tables must hold.

Whatever is wrong with a file is said once, as a FolderError with its name and the column; whoever
gets a table from here may use it as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.errors import FolderError
from bench.judge.fairness import ROOFLINE, Fairness
from bench.judge.fairness import TABLE as FAIRNESS
from bench.judge.paired import CLIP_COLUMNS, CLIP_PAIRS, reseed_of, with_differences
from bench.measure.rates import MACHINE, read_rates
from bench.records import columns
from bench.records.run_data import MARGIN, Entry, Role, RunData, Section, as_text, missing
from bench.records.study import read_study

SECTION_KEYS = ("model", "backend", "device", "dtype", "temperature", "cfg")
NO_PART = {"", "none", "null", "-", "nan"}

REMEDY = (
    "run `python -m bench run study=...` again: it resumes and writes what is missing; of a copied "
    "folder, copy it once more"
)


@dataclass(frozen=True)
class Form:
    """A table: columns of words and of numbers that it has, and others that older ones lack, which
    are then empty."""

    words: Sequence[str]
    numbers: Sequence[str] = ()
    later_words: Sequence[str] = ()
    later_numbers: Sequence[str] = ()


SUMMARY_TEXT = tuple(column.name for column in columns.SUMMARY if column.type == "text")
SUMMARY_NUMBERS = tuple(column.name for column in columns.SUMMARY if column.type == "float")
LATER = ("fid_debiased_lo", "fid_debiased_hi", "kid_lo", "kid_hi", "tv_tested")  # may be absent
SUMMARY = Form(
    SUMMARY_TEXT, [name for name in SUMMARY_NUMBERS if name not in LATER], later_numbers=LATER
)
JUDGED = "judged.json"  # scores of every image, for `diff`
NAMED = ("prc_features", "clip_features", "hps_features")  # in quality.csv
FORMS = {
    FAIRNESS: Form(("decoder", "verdict", "reason"), ("factor",), ("mixed",), ("worth",)),
    "quality.csv": Form(("decoder",), (), ("fid_features", *NAMED), ("hps",)),
    "exactness.csv": Form(("decoder", "verdict")),
    CLIP_PAIRS: Form(CLIP_COLUMNS[:2], CLIP_COLUMNS[2:]),
    ROOFLINE: Form(
        ("decoder", "note"),
        (
            "codes", "images", "accept_share",
            *(f"{part}_{figure}" for part in ("step", "ar", "forward", "draft")
              for figure in ("ms", "floor_ms", "over_floor")),
            "ar_bytes", "ar_operations", "forward_bytes", "forward_operations",
            "bytes_per_s", "large_bytes_per_s", "operations_per_s",
        ),
    ),
}  # fmt: skip

NOTHING: dict[str, Any] = dict.fromkeys(SUMMARY_NUMBERS, math.nan) | dict.fromkeys(SUMMARY_TEXT, "")
PHASES = ("text", "prefill", "draft", "forward", "accept", "vq")
PROVENANCE = (
    "git_commit",
    "git_dirty",
    "versions",
    "cpu",
    "gpu",
    "threads",
    "config_hash",
    "started_at",
)
UNREAD = ("depth",)  # of which nothing is made
RECORD_COLUMNS = tuple(name for name in columns.SCHEMA.names if name not in UNREAD)


def load(folder: Path) -> RunData:
    """A finished run, and what there is of roofline.csv, fairness.csv, quality.csv, machine.json
    and clip_pairs.csv (runs that timed or scored nothing lack them). Raises FolderError on a
    missing, unreadable, empty or incomplete file."""
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.is_file() else f"no run folder {folder}"
        raise FolderError(
            f"{what}: expected the folder of a run (`python -m bench run study=...` makes one)"
        )
    records = read_rows(folder / columns.MERGED)
    path = folder / "summary.csv"
    table = read_table(path, SUMMARY)
    if table.empty:
        raise FolderError(f"{path} has no rows: nothing was measured yet; {REMEDY}")
    table = table.assign(exactness=table.exactness.map(_today))
    pairs = pd.DataFrame(lines_of(folder / CLIP_PAIRS), columns=CLIP_COLUMNS)
    summary = with_differences(_with_unsummarised(table, records), pairs)
    return RunData(
        folder,
        as_text(summary["study"].iloc[0]) or folder.name,
        _sections([_entry(line, records) for line in plain(summary)], _margin(folder)),
        records,
        roofline=_by_decoder(lines_of(folder / ROOFLINE)),
        quality=_by_decoder(lines_of(folder / "quality.csv")),
        fairness={line["decoder"]: Fairness(**line) for line in lines_of(folder / FAIRNESS)},
        machine=read_rates(folder / MACHINE),
    )


def read_rows(path: Path) -> pd.DataFrame:
    """The rows of records.parquet but for `UNREAD`, each column of its type, without nulls. Raises
    FolderError."""
    require_file(path)
    if wrong := _other_version(path):
        raise FolderError(wrong)
    try:
        names = pq.read_schema(path).names
        require_columns(path, RECORD_COLUMNS, [*names, *columns.LATER])
        known = [name for name in RECORD_COLUMNS if name in names]
        table = pq.read_table(path, columns=known, page_checksum_verification=True)
        table = columns.with_later(table)
        table = table.cast(pa.schema([columns.SCHEMA.field(name) for name in RECORD_COLUMNS]))
    except (pa.ArrowException, OSError) as error:
        raise FolderError(f"{path} is damaged: no readable Parquet ({error}); {REMEDY}") from error
    for field in table.schema:
        if not pa.types.is_floating(field.type) and table[field.name].null_count:
            raise FolderError(f"{path}: column {field.name} has empty cells; copy the file again")
    found: pd.DataFrame = table.to_pandas()
    if any(Path(name).is_absolute() or ".." in name for name in {*found["image"]}):
        raise FolderError(f"{path} names a picture outside of its folder; copy the file again")
    if found.empty:
        raise FolderError(f"{path} has no rows: no image was decoded yet; {REMEDY}")
    return found


def _other_version(path: Path) -> str:
    """That rows are of a schema version that cannot be read, and what to do about it; "" where
    they are of one that can, or the file has no versions (whoever reads it says what it is)."""
    try:
        found = pq.read_table(path, columns=["schema_version"], partitioning=None)
    except (pa.ArrowException, KeyError, OSError):
        return ""
    versions = sorted(set(found.column(0).to_pylist()) - {*columns.READABLE})
    readable = ", ".join(map(str, columns.READABLE))
    wrong = (
        f"{path} has rows of schema version {versions}, this program reads {readable}: read it "
        "with the version of lantern-bench that made it, or run the study again into another "
        "run_dir="
    )
    return wrong if versions else ""


def judged(folder: Path) -> dict[str, dict[str, Any]]:
    """Decoder -> its scores (`bench.data.scores.Scores`), those of every image too; {} where the
    run has none. Raises FolderError."""
    path, mark = folder / JUDGED, "figures of "
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
        scores = {key: one["value"]["scores"] for key, one in found.items() if key.startswith(mark)}
    except (ValueError, AttributeError, TypeError, LookupError) as error:
        raise FolderError(f"{path} is damaged ({error!r}); {REMEDY}") from error
    return {key.removeprefix(mark): one for key, one in scores.items()}


def _today(verdict: str) -> str:
    """A verdict's cell in today's words: tables of earlier versions say `bounded`, and `violates`
    of whatever passed a declared bound."""
    holds = "output bound holds" in verdict  # no output bound was exceeded: no claim is broken
    for old, new in (("bounded", "relaxed"), ("violates", "relaxed" if holds else "broken")):
        if verdict.startswith(old):
            return new + verdict.removeprefix(old)
    return verdict


def _by_decoder(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {str(line["decoder"]): line for line in lines}


def _with_unsummarised(summary: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Adds a row without figures for decoders that only the records know: none may go missing."""
    shared = [c for c in (*SUMMARY_TEXT, "temperature", "cfg") if c in records]
    rows: list[dict[str, Any]] = []
    others = records[~records["decoder"].isin(summary["decoder"])]
    for _, group in others.groupby("decoder", sort=False):
        failed = bool((group["status"] == "failed").all())
        status = "failed" if failed else "failed: not in summary.csv"
        rows.append(NOTHING | {c: group[c].iloc[0] for c in shared} | {"status": status})
    return pd.concat([summary, pd.DataFrame(rows)], ignore_index=True) if rows else summary


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


def _margin(folder: Path) -> float:
    """Of CLIP scores, as the run's study states it; the default of older runs."""
    path = folder / "study.json"
    config = read_study(path).get("config", {}) if path.is_file() else {}
    return float(config.get("quality", {}).get("margin", MARGIN))


def _sections(entries: list[Entry], margin: float) -> list[Section]:
    """Groups by SECTION_KEYS, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(tuple(as_text(entry.row[key]) for key in SECTION_KEYS), []).append(entry)
    varying = [key for at, key in enumerate(SECTION_KEYS[:4]) if len({g[at] for g in groups}) > 1]
    return [replace(_section(group, varying), margin=margin) for group in groups.values()]


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


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of `FORMS`, of which its form's columns; [] where there is no such
    file."""
    form = FORMS[path.name]
    if not path.is_file():
        return []
    table = read_table(path, form)
    known = {*form.words, *form.numbers, *form.later_words, *form.later_numbers}
    return plain(table[[name for name in table if name in known]])


def plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table."""
    return [{str(k): v for k, v in line.items()} for line in table.to_dict("records")]


def read_table(path: Path, form: Form) -> pd.DataFrame:
    """A table of a run: texts, and numbers, which are finite, or NaN in empty cells. Raises
    FolderError: missing, unreadable, without such a column, with something else in it."""
    require_file(path)
    try:
        # Only empty cells are missing: a part may well be called "none" or "null".
        table = pd.read_csv(path, keep_default_na=False, dtype=str, index_col=False)
    except ValueError as error:  # empty, no table, no UTF-8
        raise FolderError(f"{path} is not a readable table ({error}); {REMEDY}") from error
    require_columns(path, (*form.words, *form.numbers), list(table.columns))
    later = (*form.later_words, *form.later_numbers)
    table = table.assign(**{name: "" for name in later if name not in table})
    for column in [name for name in table if name in (*form.numbers, *form.later_numbers)]:
        blank = table[column].str.strip().str.lower().isin({"", "nan", "none"})
        try:
            table[column] = table[column].mask(blank).astype(float)
        except ValueError as error:
            raise FolderError(
                f"{path}: column {column} holds a non-number ({error}); {REMEDY}"
            ) from error
        if table[column].abs().max() == math.inf:
            raise FolderError(f"{path}: column {column} holds a number that is not finite")
    return table


def require_file(path: Path) -> None:
    if path.is_file():
        return
    folder = path.parent
    tables = any((folder / name).is_file() for name in ("summary.csv", "study.json"))
    if path.suffix == ".parquet" and tables and not (folder / "rows").is_dir():
        raise FolderError(
            f"{folder} holds tables without {path.name}, so it can be neither reported nor "
            "compared: expected a finished run; of a copied folder, copy that file too"
        )
    raise FolderError(
        f"there is no {path}, so {folder} holds no finished run; run the study first (`python -m "
        "bench run study=...` resumes and writes what is missing), or name the folder of another "
        "run"
    )


def require_columns(path: Path, wanted: Sequence[str], found: list[str]) -> None:
    lacking = [column for column in wanted if column not in found]
    if lacking:
        raise FolderError(f"{path} lacks the columns {', '.join(lacking)}; {REMEDY}")
