"""Folders of runs that are damaged, of something else, or of other words."""

import json
from pathlib import Path

from bench.records.rows import SCHEMA_VERSION
from tests.edge.table import Bad


def another(folder: Path) -> None:
    """A finished run of other settings."""
    run = folder / "run"
    run.mkdir()
    study = {
        "schema_version": SCHEMA_VERSION,
        "config_hash": "0",
        "config": {"seed": 0},
        "machine": {},
    }
    (run / "study.json").write_text(json.dumps(study))
    (run / "summary.csv").write_text("")
    (run / "records.parquet").write_bytes(b"")


def older(folder: Path) -> None:
    another(folder)
    study = folder / "run" / "study.json"
    study.write_text(json.dumps(json.loads(study.read_text()) | {"schema_version": 1}))


def no_run(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "notes.txt").write_text("mine")


def half(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "study.json").write_text('{"schema_version": 1, "con')


REPORT = ["report", "study=smoke", "run_dir={tmp}/run"]
CASES = [
    Bad("report of another seed", [*REPORT, "seed=5"], "another configuration", another),
    Bad("report of older rows", REPORT, "schema version 1", older),
    Bad("report of no run", REPORT, "holds no run", no_run),
    Bad("report of nothing", REPORT, "holds no run"),
    Bad("report of a damaged study.json", REPORT, "damaged", half),
]
