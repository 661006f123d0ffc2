"""A run that did not come to its end: how far it came, and a table of what is there.

`python -m bench report` on such a folder merges and summarises the records so far, without
verdicts, quality figures and floors other than AR's, which come after the last record. The merged
files go to <run>/partial/, so that nothing takes them for those of a finished run; the report says
in its title what it is of.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.config.schema import DecoderVariant, StudyConfig
from bench.console import terminable
from bench.data.errors import Interrupted
from bench.data.files import write_text
from bench.judge.fairness import Fairness, judge
from bench.judge.roofline import baseline_floors
from bench.records.folder import RunFolder
from bench.records.study import read_identity
from bench.run.summary import summarise
from decoders.api import Sampling

PARTIAL = "partial"


@dataclass(frozen=True)
class Progress:
    """done: records so far; total: how many there will be, None where nobody noted it."""

    done: int
    total: int | None

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} images" if self.total else f"{self.done:,} images"


@dataclass(frozen=True)
class Partial:
    """The files of an unfinished run. title: of its table."""

    folder: Path
    title: str
    fairness: list[Fairness]


def recorded(path: Path) -> RunFolder:
    """A folder with the records that count by its study.json, without a model."""
    folder = RunFolder(path)
    if any(path.glob("rows/*.jsonl")):
        study = read_identity(path)
        code, forced = study.get("code", {}), study.get("forced", [])
        folder.read(lambda r: r["code"] == code.get(r["decoder"]) or r["decoder"] in forced)
    return folder


def progress_of(config: StudyConfig) -> Progress:
    """How far the run in a study's folder has come; 0 done where there is none."""
    folder = recorded(Path(config.run_dir))
    total = read_identity(folder.path).get("rows") if folder.records else None
    return Progress(len(folder.records), total)


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
    progress = progress_of(config)
    if not progress.done:
        return "interrupted before the first image was recorded; the same command starts again"
    lines = [f"interrupted: {progress} are recorded in {config.run_dir}; the same command resumes"]
    if progress.done == progress.total:
        lines[0] += ", with what comes after the images: verdicts, quality figures, report"
    lines.append(f"a table of what is there: python -m bench report {shlex.join(words)}".rstrip())
    return "\n".join(lines)


def gather(config: StudyConfig, elsewhere: Path | None = None) -> Partial | None:
    """Merges and summarises the records of an unfinished run, in its folder or `elsewhere`; None,
    and nothing written, for a finished one and where there are no records."""
    folder, progress = recorded(Path(config.run_dir)), progress_of(config)
    if not progress.done or (folder.path / "summary.csv").exists():
        return None
    place = (elsewhere or folder.path) / PARTIAL
    rows = folder.merge(sorted(folder.records), place)
    every = _variants(config, rows)
    floors = baseline_floors(folder.path, every, rows)
    fair = judge(rows, config.baselines, floors, config.fairness)
    table = summarise(place, rows, every, fair, scorer=None, exactness={})
    table["status"] = table["status"].replace("ok", PARTIAL)
    write_text(place / "summary.csv", table.to_csv(index=False))
    waiting = [e.name for e in config.decoders if e.name not in {v.name for v in every}]
    title = f"{PARTIAL}: {progress}" + (f"; none yet of {', '.join(waiting)}" if waiting else "")
    return Partial(place, title, fair)


def clear(folder: Path) -> None:
    """Removes what `gather` made, once a run is finished."""
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)


def _variants(config: StudyConfig, rows: pd.DataFrame) -> list[DecoderVariant]:
    """The decoders that have rows, in the study's order; temperature and guidance as recorded."""
    first = rows[rows.protocol != "reseed"].drop_duplicates("decoder").set_index("decoder")
    settings = zip(first.temperature.astype(float), first.cfg.astype(float), strict=True)
    sampling = {
        str(name): Sampling(*both) for name, both in zip(first.index, settings, strict=True)
    }
    return [DecoderVariant(e, sampling[e.name]) for e in config.decoders if e.name in sampling]
