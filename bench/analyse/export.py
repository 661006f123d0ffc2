"""The tables that a run folder holds for people and spreadsheets. Nothing reads them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bench.analyse.run_data import RunData
from bench.data.files import write_text
from bench.store.columns import SUMMARY


def export(run: RunData) -> None:
    """Writes summary.csv, roofline.csv, fairness.csv, clip_pairs.csv and exactness.csv, those that
    have a row."""
    tables = {
        "summary": [{c.name: e.row[c.name] for c in SUMMARY} for e in run.entries],
        "roofline": [*run.roofline.values()],
        "fairness": [vars(one) for one in run.fairness.values()],
        "exactness": [{"decoder": name, **vars(one)} for name, one in run.gate.items()],
    }
    for name, lines in tables.items():
        _write(run.folder / f"{name}.csv", pd.DataFrame(lines))
    _write(run.folder / "clip_pairs.csv", run.clip_pairs)


def _write(path: Path, table: pd.DataFrame) -> None:
    """Writes a table; where it has no rows, removes the file of an earlier time instead."""
    path.unlink(missing_ok=True)
    if len(table):
        write_text(path, table.to_csv(index=False))
