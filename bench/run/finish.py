"""After the rows: the exactness gate, roofline and fairness, the quality figures, summary.csv.

Of a run that did not come to its end: how far it got, and a table of what is there. `python -m
bench report` on such a folder merges and summarises the rows so far, without verdicts, quality
figures and floors other than AR's, which come after the last row. The merged files go to
<run>/partial/, so that nothing takes them for those of a finished run; the report says in its title
what it is of.
"""

from __future__ import annotations

import logging
import math
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.plugins import call, require_returned
from bench.config.schedule import Cell
from bench.config.schema import StudyConfig
from bench.console import progress, terminable, warnings_once
from bench.data.errors import Failure, Interrupted, TimeLimitError, attempt
from bench.data.files import write_text
from bench.judge.fairness import Fairness, judge, write_fairness
from bench.judge.quality import Scorer
from bench.judge.roofline import baseline_floors, roofline
from bench.records.folder import RunFolder, recorded, row_keys
from bench.records.kept import Kept, code_digest
from bench.records.study import read_identity, require_own
from bench.run.guard import Guard
from bench.run.runner import RunResult
from bench.run.summary import summarise, write_csv
from decoders.api import ImageModel, Sampling

log = logging.getLogger(__name__)
PARTIAL = "partial"
VERDICT_COLUMNS = ("decoder", "verdict", "figure", "expected", "detail")


@dataclass(frozen=True)
class Verdict:
    """What the gate says of a decoder. verdict: exact, relaxed, broken or "not checked"; text: the
    same for a table's cell, with the figure."""

    decoder: str
    verdict: str
    figure: float
    detail: str
    expect: str | None
    text: str

    @property
    def as_expected(self) -> bool:
        if self.expect is None:
            return self.verdict in ("exact", "relaxed")
        return self.verdict == self.expect

    def cells(self) -> tuple[str, ...]:
        """Cells of a table."""
        expected = self.expect or "exact or relaxed"
        return self.decoder, self.verdict, f"{self.figure:.4g}", expected, self.detail


def scorer_of(config: StudyConfig) -> Scorer | None:
    """The study's scorer, made before the run: missing metric weights then stop it at the start.

    Raises MetricError, ConfigError.
    """
    if config.metric is None or not config.quality.images or not config.keep_images:
        return None
    made: Scorer = call(config.metric, device=config.backend.device)
    fits = callable(getattr(made, "score", None))
    require_returned(config.metric, made, fits, "a scorer (bench.judge.quality.Scorer)")
    return made


def finish(config: StudyConfig, result: RunResult, scorer: Scorer | None = None) -> pd.DataFrame:
    """Judges, scores and summarises the rows of a run; returns the summary."""
    path, rows, cells = result.path, result.rows, result.cells
    floors = roofline(path, result.model, cells, rows)
    fair = judge(rows, config.baselines, floors, config.fairness)
    write_fairness(path, fair)
    kept = Kept(path)
    exactness = _judged(config, result, kept)
    scorer = scorer if result.model.draws else None
    with warnings_once():
        table = summarise(path, rows, cells, fair, scorer=scorer, exactness=exactness, kept=kept)
    kept.save()
    return table


def _judged(config: StudyConfig, result: RunResult, kept: Kept) -> dict[str, str]:
    """The gate's verdicts as a table's cells, also as exactness.csv. Without a gate: those of an
    earlier time, on the very same code."""
    captions = list(dict.fromkeys(result.rows.sort_values("prompt_index").prompt))
    made, known = dict[str, Sequence[str]](), dict[str, Sequence[str]]()
    if config.gate:
        # Where an image ran into the time limit the gate could wait for ever.
        late = result.rows.decoder[result.rows.error.str.startswith(TimeLimitError.__name__)]
        found = verdicts(result.model, result.cells, lambda: captions, set(late))
        made = {one.decoder: (one.text, *one.cells()) for one in found}
    for name, own in result.rows.groupby("decoder", sort=False):
        words = kept.verdict(str(name), code_digest(own), made.get(str(name), ()))
        known |= {} if words is None else {str(name): words}
    path = result.path / "exactness.csv"
    lines = [known[c.entry.name][1:] for c in result.cells if c.entry.name in known]
    write_csv(path, pd.DataFrame(lines, columns=list(VERDICT_COLUMNS)))
    return {name: words[0] for name, words in known.items()}


def verdicts(
    model: ImageModel,
    cells: Sequence[Cell],
    captions: Callable[[], Sequence[str]],
    skipped: Collection[str] = (),
) -> list[Verdict]:
    """The gate's verdict on every cell; one it cannot judge is "not checked", with the error, and
    so is one of `skipped`, which ran into the time limit. captions: prompts of the model, for
    drafters that are judged on images of it. Raises SharedStateError."""
    found, guard = list[Verdict](), Guard(model, cells)
    with progress(len(cells), "exactness", unit="decoder") as bar:
        for cell in cells:
            bar.set_postfix_str(cell.entry.name)
            found.append(_verdict(cell, model, captions, cell.entry.name in skipped))
            guard.check(cell)
            bar.update()
    return found


def _verdict(
    cell: Cell, model: ImageModel, captions: Callable[[], Sequence[str]], skipped: bool
) -> Verdict:
    from bench.judge.gate import check_decoder

    name, expect, spec = cell.entry.name, cell.entry.expect, cell.entry.spec
    found: Any = Failure("an image of it ran into time_limit")
    if not skipped:
        found = attempt(lambda: check_decoder(spec, cell.sampling, model, captions))
    if isinstance(found, Failure):
        log.warning("the gate could not judge %s: %s", name, found.error)
        return Verdict(name, "not checked", math.nan, found.error, expect, "not checked")
    return Verdict(name, found.verdict, found.figure, found.detail, expect, found.text)


@dataclass(frozen=True)
class Progress:
    """done: rows that are recorded; total: how many there will be, None where an older version
    began the run."""

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


def progress_of(config: StudyConfig) -> Progress:
    """How far the run in a study's folder has come; 0 done where there is none."""
    folder = Path(config.run_dir)
    done = len(row_keys(folder))
    total = read_identity(folder).get("rows") if done else None
    return Progress(done, total)


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
    folder, found = Path(config.run_dir), progress_of(config)
    if not found.done or (folder / "summary.csv").exists():
        return None
    # What is damaged, of another place or of another machine is left out, with a warning.
    whole, _ = recorded(folder, require_own(folder, config))
    place = (elsewhere or folder) / PARTIAL
    rows: pd.DataFrame = RunFolder(place, whole.tables).merge().to_pandas()
    found = replace(found, done=len(rows))
    cells = cells_of(config, rows)
    floors = baseline_floors(folder, cells, rows)
    fair = judge(rows, config.baselines, floors, config.fairness)
    table = summarise(place, rows, cells, fair, scorer=None, exactness={}, kept=Kept(place))
    table["status"] = table["status"].replace("ok", PARTIAL)
    write_text(place / "summary.csv", table.to_csv(index=False))
    waiting = [e.name for e in config.decoders if e.name not in {c.entry.name for c in cells}]
    title = f"{PARTIAL}: {found}" + (f"; none yet of {', '.join(waiting)}" if waiting else "")
    return Partial(place, title, fair)


def clear(folder: Path) -> None:
    """Removes what `gather` made, once a run is finished."""
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)


def cells_of(config: StudyConfig, rows: pd.DataFrame) -> list[Cell]:
    """The cells that have rows, in the study's order; temperature and guidance as recorded."""
    first = rows[rows.protocol != "reseed"].drop_duplicates("decoder").set_index("decoder")
    settings = zip(first.temperature.astype(float), first.cfg.astype(float), strict=True)
    made = {str(name): Sampling(*own) for name, own in zip(first.index, settings, strict=True)}
    return [Cell(e.name, e, made[e.name]) for e in config.decoders if e.name in made]
