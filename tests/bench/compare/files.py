"""Files that the tests of `bench compare` read: a table of published numbers, a run folder."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from bench.compare.published import COLUMNS
from bench.records import rows as made
from bench.run.summary import COLUMNS as SUMMARY

EMPTY = {pa.string(): "", pa.int64(): 0, pa.float64(): 0.0, pa.bool_(): False}


def write(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    """A published.csv with the rows; cells that a row leaves out are empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def a_run(folder: Path, *rows: dict[str, Any], study: dict[str, Any] | None) -> Path:
    """A run folder with a summary of the rows, and study.json."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([dict.fromkeys(SUMMARY, "") | row for row in rows]).to_csv(
        folder / "summary.csv", index=False
    )
    if study is not None:
        (folder / "study.json").write_text(json.dumps(study))
    return folder / "summary.csv"


def records(folder: Path, **seconds: list[float]) -> None:
    """records.parquet with latency rows of each decoder on prompts 0, 1, ..."""
    rows = [
        {field.name: EMPTY[field.type] for field in made.SCHEMA if field.type in EMPTY}
        | made.empty_measures() | {
            "schema_version": made.SCHEMA_VERSION, "decoder": name, "protocol": "latency",
            "model": "llamagen_xl_256", "backend": "eager", "device": "cuda", "dtype": "bfloat16",
            "temperature": 1.0, "cfg": 7.5, "status": "ok", "prompt_index": i, "seed": 0,
            "block": i, "repeat": 0, "seconds_total": s, "mal": 2.0 + i / 10, "nfe": 100,
            "top_k": 1000, "gpu": "NVIDIA A40",
        }
        for name, times in seconds.items()
        for i, s in enumerate(times)
    ]  # fmt: skip
    made.write(folder / "records.parquet", pa.Table.from_pylist(rows, schema=made.SCHEMA))
