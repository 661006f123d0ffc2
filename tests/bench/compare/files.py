"""Files that the tests of `bench compare` read: a table of published numbers, a run folder."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from bench.compare.published import COLUMNS
from bench.records import columns as made
from bench.records.folder import write_parquet
from bench.run.summary import COLUMNS as SUMMARY

ALIKE = ("decoder", "model", "backend", "device", "dtype", "temperature", "cfg")
EMPTY = {pa.string(): "", pa.int64(): 0, pa.float64(): 0.0, pa.bool_(): False}


def write(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    """A published.csv with the rows; cells that a row leaves out are empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def a_run(
    folder: Path, *rows: dict[str, Any], gpu: str, prompts: str, seconds: dict[str, list[float]]
) -> Path:
    """A run folder with a summary of the rows, and with latency rows of each decoder: these
    seconds on prompts 0, 1, ..., or its mean twice."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame([dict.fromkeys(SUMMARY, "") | row for row in rows])
    table.to_csv(folder / "summary.csv", index=False)
    (folder / "study.json").write_text(json.dumps({"config": {"prompts": {"name": prompts}}}))
    timed = [
        {field.name: EMPTY[field.type] for field in made.SCHEMA if field.type in EMPTY}
        | made.empty_measures()
        | {key: row[key] for key in ALIKE}
        | {
            "schema_version": made.SCHEMA_VERSION, "protocol": "latency", "status": "ok",
            "prompt_index": i, "block": i, "seconds_total": s, "mal": 2.0 + i / 10, "nfe": 100,
            "top_k": 1000, "gpu": gpu,
        }
        for row in rows
        for i, s in enumerate(seconds.get(row["decoder"], [row["latency_mean_s"]] * 2))
    ]  # fmt: skip
    write_parquet(folder / "records.parquet", pa.Table.from_pylist(timed, schema=made.SCHEMA))
    return folder
