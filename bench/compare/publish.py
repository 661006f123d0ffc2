"""`python -m bench publish RUN DIR`: copies what is shared of a run: its records without the lists
of every code, tables and judgements.

Why without: the lists (codes, masses; `bench.records.rows.LISTS`) are nine tenths of
records.parquet and no comparison of two runs reads them. Accepted lengths of timed images stay.
Pictures stay behind; their hashes are in the rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from bench.config.schedule import LATENCY
from bench.config.words import with_folders
from bench.console import say
from bench.data.errors import ConfigError, FolderError
from bench.data.files import refuse_links, write_text
from bench.records import rows as records
from bench.records.load import ROWS
from bench.records.run_json import FILE, FILES, TABLES, read_record, record_of
from bench.records.study import read_identity

REPORT = (*TABLES, "table.tex", "contact_sheet.png", "code_maps.png")


def cmd_publish(words: Sequence[str]) -> int:
    """Copy what is shared of a run: records, tables, hashes (run.json).
    `diff` and `leaderboard` read such folders.
    Usage: RUN DIR [setting=value ...]
    Settings:
        lists=true  keep the codes and masses of every image (default: false)
    Example: publish results/runs/main results/tables/main

    Raises ConfigError, FolderError.
    """
    folders, given = with_folders(words, ("lists",), "publish")
    if len(folders) != 2:
        raise ConfigError(
            f"expected a run folder and a folder to publish in, found {len(folders)}; write "
            "`publish results/runs/main results/tables/main`"
        )
    lists = given.get("lists", "false")
    if lists not in ("true", "false"):
        raise ConfigError(f"lists must be true or false, found {lists!r}")
    run, folder = folders
    made = publish(run, folder, lists == "true")
    size = sum(path.stat().st_size for path in made)
    plots = ", and the plots of its report" if (folder / "plots").is_dir() else ""
    say(f"{folder}: {len(made)} files, {size / 1e3:,.0f} kB{plots}")
    return 0


def publish(run: Path, folder: Path, lists: bool = False) -> list[Path]:
    """Copies what is shared of a finished run, or of a published one, into a folder, run.json last;
    returns what is there. lists: keep the columns of every code, where the run has them.

    Raises FolderError where the run is not finished or not as its run.json says, its records are
    damaged or of another schema version, where the folder holds something else, and at a link in
    either: what it points to would be copied, or written over.
    """
    refuse_links(run)
    refuse_links(folder)
    _require_own(run, folder)
    recorded = (run / FILE).is_file()
    lacking = read_record(run / FILE).said["left_out"] if recorded else record_of(run)["left_out"]
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
    for place, names in ((run, FILES), (report, REPORT)):
        for name in (name for name in names if name != ROWS):
            (folder / name).unlink(missing_ok=True)  # of an earlier publication
            if (place / name).is_file():
                shutil.copyfile(place / name, folder / name)
    shutil.rmtree(folder / "plots", ignore_errors=True)
    if (report / "plots").is_dir():
        pictures = shutil.ignore_patterns("*.svg")  # thousands of lines that say the same
        shutil.copytree(report / "plots", folder / "plots", ignore=pictures)
    text = json.dumps(record_of(folder, left_out), indent=1) + "\n"
    write_text(folder / FILE, text)
    return sorted(p for p in folder.iterdir() if p.is_file())


def _require_own(run: Path, folder: Path) -> None:
    """Raises FolderError where the folder is no place for the run: a publication is replaced by a
    run of the same configuration alone."""
    if run.resolve() == folder.resolve():
        raise FolderError(f"{folder} is the run itself; name another folder")
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; name a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / "study.json").is_file():
        raise FolderError(f"{folder} is not empty and holds no published run; name another folder")
    if read_identity(folder)["config_hash"] != read_identity(run)["config_hash"]:
        raise FolderError(
            f"{folder} holds a run of another configuration; name another folder, or delete it to "
            f"publish {run} there"
        )


def _without(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """The table with empty lists in these columns, but for accepted lengths of timed images: the
    schema stays the same."""
    timed = [protocol == LATENCY for protocol in table.column("protocol").to_pylist()]
    for name in names:
        at = table.schema.get_field_index(name)
        kind = table.schema.field(at)
        kept: list[list[int]] = [[]] * table.num_rows
        if name == "accepted":
            every = table.column(at).to_pylist()
            kept = [own if keep else [] for own, keep in zip(every, timed, strict=True)]
        table = table.set_column(at, kind, pa.array(kept, kind.type))
    return table
