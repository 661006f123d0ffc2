"""A run that did not come to its end: how far it got, and a table of what is there.

`python -m bench report` on such a folder merges and summarises the rows so far, without verdicts,
quality figures and floors other than AR's, which come after the last row. The merged files go to
<run>/partial/, so that nothing takes them for those of a finished run; the report says in its title
what it is of.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import StudyConfig
from bench.console import terminable
from bench.errors import Interrupted
from bench.judge.fairness import UNMEASURED, Fairness, judge
from bench.judge.roofline import baseline_floors
from bench.records.folder import RunFolder
from bench.records.identity import expected_of
from bench.records.schema import write_text
from bench.records.study import read_identity, require_own
from bench.run.schedule import Cell
from decoders.api import Sampling

FOLDER = "partial"


@dataclass(frozen=True)
class Progress:
    """rows: (cell, stem) of what is recorded; total: how many there will be, None where an older
    version began the run; again: whether an image has a row each time it is timed."""

    rows: list[tuple[str, str]]
    total: int | None
    again: bool

    def __str__(self) -> str:
        done = f"{len(self.rows):,}"
        of = f"{done} of {self.total:,} images" if self.total else f"{done} images"
        return of + (" (one timed several times is counted each time)" if self.again else "")


@dataclass(frozen=True)
class Partial:
    """The files of an unfinished run. title: of its table."""

    folder: Path
    title: str
    fairness: list[Fairness]


def progress_of(config: StudyConfig) -> Progress:
    """How far the run in a study's folder has come; no rows where there is none."""
    folder = Path(config.run_dir)
    paths = sorted(p for p in folder.glob("rows/*/*.parquet") if not p.name.startswith("."))
    total = read_identity(folder).get("rows") if paths else None
    rows = [(path.parent.name, path.stem) for path in paths]
    return Progress(rows, total, config.latency.repeats > 1)


@contextmanager
def interruptible(config: StudyConfig, words: Sequence[str]) -> Iterator[None]:
    """Around a run: Ctrl-C and SIGTERM raise Interrupted, which says how far it came and how to go
    on. words: the study's, from the command line."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as stop:
        raise Interrupted(told(config, words)) from stop


def told(config: StudyConfig, words: Sequence[str]) -> str:
    """What a user is told after an interruption."""
    found = progress_of(config)
    if not found.rows:
        return "interrupted before the first image was recorded; the same command starts again"
    lines = [f"interrupted: {found} are recorded in {config.run_dir}; the same command resumes"]
    if len(found.rows) == found.total:
        lines[0] += ", with what comes after the images: verdicts, quality figures, report"
    lines.append(f"a table of what is there: python -m bench report {shlex.join(words)}".rstrip())
    return "\n".join(lines)


def gather(config: StudyConfig, elsewhere: Path | None = None) -> Partial | None:
    """Merges and summarises the rows of an unfinished run, in its folder or `elsewhere`; None, and
    nothing written, for a finished one and where there are no rows.

    Raises FolderError where the rows are of another schema version or configuration.
    """
    from bench.run.summary import summarise

    folder, found = Path(config.run_dir), progress_of(config)
    if not found.rows or (folder / "summary.csv").exists():
        return None
    identity = require_own(folder, config)
    place = (elsewhere or folder) / FOLDER
    rows = _merged(folder, found, identity, place)
    found = replace(found, rows=found.rows[: len(rows)])
    cells = cells_of(config, rows)
    floors = baseline_floors(folder, cells, rows)
    fair = judge(rows, config.baselines, floors, config.fairness)
    unmeasured = [one.decoder for one in fair if one.verdict == UNMEASURED]
    table = summarise(place, rows, cells, scorer=None, exactness={}, unmeasured=unmeasured)
    table["status"] = table["status"].replace("ok", FOLDER)
    write_text(place / "summary.csv", table.to_csv(index=False))
    waiting = [e.name for e in config.decoders if e.name not in {c.entry.name for c in cells}]
    title = f"{FOLDER}: {found}" + (f"; none yet of {', '.join(waiting)}" if waiting else "")
    return Partial(place, title, fair)


def clear(folder: Path) -> None:
    """Removes what `gather` made, once a run is finished."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _merged(
    folder: Path, found: Progress, identity: Mapping[str, Any], place: Path
) -> pd.DataFrame:
    """records.parquet of the rows so far, in `place`. A damaged row, one of another place and one
    of another machine are left out, with a warning."""
    whole = RunFolder(folder)
    known = identity["config_hash"], identity["machine"]
    whole.load({key: expected_of(*key, *known) for key in found.rows})
    merged: pd.DataFrame = RunFolder(place, whole.tables).merge().to_pandas()
    return merged


def cells_of(config: StudyConfig, rows: pd.DataFrame) -> list[Cell]:
    """The cells that have rows, in the study's order; temperature and guidance as recorded."""
    found = []
    for entry in config.decoders:
        own = rows[(rows.decoder == entry.name) & (rows.protocol != "reseed")]
        if len(own):
            first = own.iloc[0]
            sampling = Sampling(temperature=float(first.temperature), cfg=float(first.cfg))
            found.append(Cell(entry.name, entry, sampling))
    return found
