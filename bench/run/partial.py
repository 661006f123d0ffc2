"""A run that did not come to its end: how far it got, and a table of what is there.

`python -m bench report` on such a folder merges and summarises the rows so far, without verdicts,
quality figures and floors other than AR's, which come after the last row. The merged files go to
<run>/partial/, so that nothing takes them for those of a finished run; the report says in its title
what it is of.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from bench.config.schedule import Cell
from bench.config.schema import StudyConfig
from bench.console import terminable
from bench.data.errors import Interrupted
from bench.data.files import write_text
from bench.judge.fairness import UNMEASURED, Fairness, judge
from bench.judge.roofline import baseline_floors
from bench.records.folder import RunFolder, recorded, row_keys
from bench.records.kept import Kept
from bench.records.study import read_identity, require_own
from decoders.api import Sampling

FOLDER = "partial"


@dataclass(frozen=True)
class Progress:
    """done: rows that are recorded; total: how many there will be, None where an older version
    began the run; again: whether an image has a row each time it is timed."""

    done: int
    total: int | None
    again: bool

    def __str__(self) -> str:
        of = f"{self.done:,} of {self.total:,} images" if self.total else f"{self.done:,} images"
        return of + (" (one timed several times is counted each time)" if self.again else "")


@dataclass(frozen=True)
class Partial:
    """The files of an unfinished run. title: of its table."""

    folder: Path
    title: str
    fairness: list[Fairness]


def progress_of(config: StudyConfig) -> Progress:
    """How far the run in a study's folder has come; 0 done where there is none."""
    folder = Path(config.run_dir)
    done = len(row_keys(folder))
    total = read_identity(folder).get("rows") if done else None
    return Progress(done, total, config.latency.repeats > 1)


@contextmanager
def interruptible(config: StudyConfig, words: Sequence[str]) -> Iterator[None]:
    """Around a run: Ctrl-C and SIGTERM raise Interrupted, which says how far it came and how to go
    on. words: the study's, from the command line."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as stop:
        raise Interrupted(after_interruption(config, words)) from stop


def after_interruption(config: StudyConfig, words: Sequence[str]) -> str:
    """How far a run has come and how to go on, for whoever interrupted it."""
    found = progress_of(config)
    if not found.done:
        return "interrupted before the first image was recorded; the same command starts again"
    lines = [f"interrupted: {found} are recorded in {config.run_dir}; the same command resumes"]
    if found.done == found.total:
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
    if not found.done or (folder / "summary.csv").exists():
        return None
    # What is damaged, of another place or of another machine is left out, with a warning.
    whole, _ = recorded(folder, require_own(folder, config))
    place = (elsewhere or folder) / FOLDER
    rows: pd.DataFrame = RunFolder(place, whole.tables).merge().to_pandas()
    found = replace(found, done=len(rows))
    cells = cells_of(config, rows)
    floors = baseline_floors(folder, cells, rows)
    fair = judge(rows, config.baselines, floors, config.fairness)
    unmeasured = [one.decoder for one in fair if one.verdict == UNMEASURED]
    table = summarise(
        place, rows, cells, scorer=None, exactness={}, kept=Kept(place), unmeasured=unmeasured
    )
    table["status"] = table["status"].replace("ok", FOLDER)
    write_text(place / "summary.csv", table.to_csv(index=False))
    waiting = [e.name for e in config.decoders if e.name not in {c.entry.name for c in cells}]
    title = f"{FOLDER}: {found}" + (f"; none yet of {', '.join(waiting)}" if waiting else "")
    return Partial(place, title, fair)


def clear(folder: Path) -> None:
    """Removes what `gather` made, once a run is finished."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


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
