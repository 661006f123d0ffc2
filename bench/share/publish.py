"""What of a run is shared: its records without the lists of every code, tables and judgements.

Why without: the lists (codes, masses, accepted lengths; `bench.records.schema.LISTS`) are nine
tenths of records.parquet and no comparison of two runs reads them. Pictures stay behind; their
hashes are in the rows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa

from bench.errors import FolderError
from bench.records import schema as records
from bench.records.study import read_identity
from bench.share.record import FILE, FILES, TABLES, read_record, record_of

ROWS = "records.parquet"
REPORT = (*TABLES, "table.tex", "contact_sheet.png", "code_maps.png")


def publish(run: Path, folder: Path, lists: bool = False) -> list[Path]:
    """Copies what is shared of a finished run, or of a published one, into a folder, run.json last;
    returns what is there. lists: keep the columns of every code, where the run has them.

    Raises FolderError where the run is not finished or not as its run.json says, its records are
    damaged or of another schema version, and where the folder holds something else.
    """
    if run.resolve() == folder.resolve():
        raise FolderError(f"{folder} is the run itself; name another folder")
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "study.json").is_file():
        raise FolderError(f"{folder} is not empty and holds no published run; name another folder")
    _require_own(run, folder)
    lacking = read_record(run / FILE).said["left_out"] if (run / FILE).is_file() else []
    if not (run / FILE).is_file():
        record_of(run)
    table = records.read(run / ROWS)
    if table is None:
        raise FolderError(
            records.other_version(run / ROWS)
            or f"{run / ROWS} is damaged; run the study again, which makes it from its rows"
        )
    left_out = tuple(lacking if lists else records.LISTS)
    report = run / "report" if (run / "report").is_dir() else run  # a published run is flat
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    records.write(folder / ROWS, _without(table, left_out))
    for name in (name for name in FILES if name != ROWS):
        _copy(run / name, folder / name)
    for name in REPORT:
        _copy(report / name, folder / name)
    shutil.rmtree(folder / "plots", ignore_errors=True)
    if (report / "plots").is_dir():
        pictures = shutil.ignore_patterns("*.svg")  # thousands of lines that say the same
        shutil.copytree(report / "plots", folder / "plots", ignore=pictures)
    text = json.dumps(record_of(folder, left_out), indent=1) + "\n"
    records.write_text(folder / FILE, text)
    return sorted(p for p in folder.iterdir() if p.is_file())


def _require_own(run: Path, folder: Path) -> None:
    """Raises FolderError where the folder holds another study: a publication is replaced by a run
    of the same configuration alone."""
    if not (folder / "study.json").is_file():
        return
    if read_identity(folder)["config_hash"] != read_identity(run)["config_hash"]:
        raise FolderError(
            f"{folder} holds a run of another configuration; name another folder, or delete it to "
            f"publish {run} there"
        )


def _without(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """The table with empty lists in these columns: the schema stays the same."""
    for name in names:
        at = table.schema.get_field_index(name)
        kind = table.schema.field(at)
        table = table.set_column(at, kind, pa.array([[]] * table.num_rows, kind.type))
    return table


def _copy(source: Path, target: Path) -> None:
    """Also that there is none: a file of an earlier publication must not stay."""
    if source.is_file():
        shutil.copyfile(source, target)
    else:
        target.unlink(missing_ok=True)
