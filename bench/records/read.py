"""What each file of a run must hold, and the one reader of tables and JSON files in it.

Why: run folders are copied, edited and published by strangers. Whatever is wrong with a file is
said once, as a FolderError with its name and the column or key; whoever gets a table or an object
from here may use it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.data.errors import FolderError
from decoders.documents import read_object
from decoders.kinds import KindError

REMEDY = "run `python -m bench run study=...` again: it resumes and writes what is missing"
COPY = "it is a published run, which nothing here makes again: copy its folder once more"


@dataclass(frozen=True)
class Form:
    """A table: columns of words and of numbers that it has, and others that older ones lack.
    further: whether it may have more, which are numbers but for those that end in _features."""

    words: Sequence[str]
    numbers: Sequence[str] = ()
    later_words: Sequence[str] = ()
    later_numbers: Sequence[str] = ()
    further: bool = False


COLUMNS = (  # of summary.csv
    "study", "model", "decoder", "loop", "drafter", "acceptance", "tree", "backend", "device",
    "dtype", "temperature", "cfg", "n_latency", "latency_mean_s", "latency_p50_s", "latency_p95_s",
    "speedup", "speedup_lo", "speedup_hi", "mal", "mal_no_bonus", "mal_expected", "nfe",
    "n_quality", "fid", "fid_lo", "fid_hi", "fid_features", "kid", "precision", "recall",
    "clip", "clip_lo", "clip_hi", "tv_bound", "tv_moved_mean", "tv_moved_max", "tv_output",
    "tv_output_bound", "tv_declared_bound", "exactness", "peak_memory_mb", "status",
)  # fmt: skip
SUMMARY_TEXT = (
    "study", "model", "decoder", "acceptance", "tree", "backend", "device", "dtype", "fid_features",
    "exactness", "status",
)  # fmt: skip
SUMMARY_NUMBERS = tuple(c for c in COLUMNS if c not in (*SUMMARY_TEXT, "loop", "drafter"))
# Without these a table is no summary of a run, of whatever version.
CORE_TEXT = ("study", "model", "decoder", "acceptance", "tree", "device", "status")
CORE_NUMBERS = (
    "temperature", "cfg", "n_latency", "n_quality", "latency_mean_s", "speedup", "mal"
)  # fmt: skip
SUMMARY = Form(SUMMARY_TEXT, SUMMARY_NUMBERS)
OLDER_SUMMARY = Form(CORE_TEXT, CORE_NUMBERS, SUMMARY_TEXT, SUMMARY_NUMBERS)
FORMS = {
    "fairness.csv": Form(("decoder", "verdict", "reason"), ("factor",), ("mixed",), ("worth",)),
    "quality.csv": Form(("decoder",), further=True),
    "exactness.csv": Form(("decoder", "verdict")),
    "clip_pairs.csv": Form(
        ("decoder", "baseline"),
        ("seeds", "images", *(f"clip_less_baseline{end}" for end in ("", "_lo", "_hi"))),
    ),
    "roofline.csv": Form(
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


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of `FORMS`, of which its form's columns; [] where there is no such
    file."""
    form = FORMS[path.name]
    if not path.is_file():
        return []
    table = read_table(path, form)
    known = {*form.words, *form.numbers, *form.later_words, *form.later_numbers}
    return plain(table if form.further else table[[name for name in table if name in known]])


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
        raise FolderError(f"{path} is not a readable table ({error}); {remedy(path)}") from error
    require_columns(path, (*form.words, *form.numbers), list(table.columns))
    numbers = {*form.numbers, *form.later_numbers}
    if form.further:
        further = [name for name in map(str, table) if not name.endswith("_features")]
        numbers |= {name for name in further if name not in form.words}
    for column in (column for column in table if column in numbers):
        blank = table[column].str.strip().str.lower().isin({"", "nan", "none"})
        try:
            table[column] = table[column].mask(blank).astype(float)
        except ValueError as error:
            raise FolderError(
                f"{path}: column {column} holds a non-number ({error}); {remedy(path)}"
            ) from error
        if table[column].abs().max() == math.inf:
            raise FolderError(f"{path}: column {column} holds a number that is not finite")
    return table


def remedy(path: Path) -> str:
    """What to do where a file of a run folder is not as it was written. A published run has no rows
    that it could be made from."""
    published = (path.parent / "run.json").is_file() and not (path.parent / "rows").is_dir()
    return COPY if published else REMEDY


def require_file(path: Path) -> None:
    if path.is_file():
        return
    folder = path.parent
    tables = any((folder / name).is_file() for name in ("summary.csv", "study.json"))
    if path.suffix == ".parquet" and tables and not (folder / "rows").is_dir():
        raise FolderError(
            f"{folder} holds tables without {path.name}, so it cannot be compared: expected a "
            "finished run, or one that `python -m bench publish` copied with its records"
        )
    raise FolderError(
        f"there is no {path}, so {folder} holds no finished run; run the study first (`python -m "
        "bench run study=...` resumes and writes what is missing), or name the folder of another "
        "run"
    )


def require_columns(path: Path, wanted: Sequence[str], found: list[str]) -> None:
    lacking = [column for column in wanted if column not in found]
    if lacking:
        raise FolderError(f"{path} lacks the columns {', '.join(lacking)}; {remedy(path)}")


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
