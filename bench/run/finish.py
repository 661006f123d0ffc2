"""After the rows: the exactness gate, roofline and fairness, the quality figures, summary.csv."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.config.plugins import call, require_returned
from bench.config.schedule import REPLAYED, Cell, is_replayed
from bench.config.schema import StudyConfig
from bench.console import progress, warnings_once
from bench.data.errors import TimeLimitError
from bench.data.files import write_text
from bench.judge.fairness import UNMEASURED, judge, write_fairness
from bench.judge.quality import Scorer, with_kept_features
from bench.judge.roofline import roofline
from bench.records.kept import Kept, code_digest
from bench.run.outcome import Failure, attempt
from bench.run.runner import RunResult
from bench.run.summary import summarise
from decoders.api import ImageModel
from decoders.compose import resolve

log = logging.getLogger(__name__)
VERDICT_COLUMNS = ("decoder", "verdict", "figure", "expected", "detail")


@dataclass(frozen=True)
class Verdict:
    """What the gate says of a decoder. verdict: exact, relaxed, broken, "not checked", or
    "replayed" for one whose acceptance is read off a recording; text: the same for a table's cell,
    with the figure."""

    decoder: str
    verdict: str
    figure: float
    detail: str
    expect: str | None
    text: str

    @property
    def as_expected(self) -> bool:
        if self.expect is None:
            return self.verdict in ("exact", "relaxed", REPLAYED)
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
    floors = roofline(result.path, result.model, result.cells, result.rows)
    fair = judge(result.rows, config.baselines, floors, config.fairness)
    write_fairness(result.path, fair)
    kept = Kept(result.path)
    exactness = {c.entry.name: REPLAYED for c in result.cells if _replayed(c)}
    exactness |= _judged(config, result, kept)
    used = scorer if result.model.draws else None
    if used is not None:
        with_kept_features(used, result.path)
    with warnings_once():
        table = summarise(
            result.path,
            result.rows,
            result.cells,
            scorer=used,
            exactness=exactness,
            kept=kept,
            unmeasured=[one.decoder for one in fair if one.verdict == UNMEASURED],
        )
    kept.save()
    return table


def _judged(config: StudyConfig, result: RunResult, kept: Kept) -> dict[str, str]:
    """The gate's verdicts as a table's cells, also as exactness.csv. Without a gate: those of an
    earlier time, on the very same code."""
    code = {str(name): code_digest(own) for name, own in result.rows.groupby("decoder")}
    captions = list(dict.fromkeys(result.rows.sort_values("prompt_index").prompt))
    fresh: list[Verdict] = []
    if config.gate:
        fresh = verdicts(result.model, result.cells, lambda: captions, late(result.rows))
    for verdict in fresh:
        words = (verdict.text, *verdict.cells())
        kept.note_verdict(verdict.decoder, code[verdict.decoder], words)
    names = (cell.entry.name for cell in result.cells)
    found = {name: kept.verdict(name, code[name]) for name in names}
    known = {name: words for name, words in found.items() if words is not None}
    lines = [words[1:] for words in known.values()]
    path = result.path / "exactness.csv"
    if lines:
        write_text(path, pd.DataFrame(lines, columns=list(VERDICT_COLUMNS)).to_csv(index=False))
    else:
        path.unlink(missing_ok=True)
    return {name: words[0] for name, words in known.items()}


def late(rows: pd.DataFrame) -> set[str]:
    """Decoders with an image that ran into the time limit: the gate could wait for ever."""
    return set(rows.decoder[rows.error.str.startswith(TimeLimitError.__name__)])


def verdicts(
    model: ImageModel,
    cells: Sequence[Cell],
    captions: Callable[[], Sequence[str]],
    skipped: Collection[str] = (),
) -> list[Verdict]:
    """The gate's verdict on every cell; one it cannot judge is "not checked", with the error, and
    so is one of `skipped`, which ran into the time limit. captions: prompts of the model, for
    drafters that are judged on images of it."""
    out = []
    with progress(len(cells), "exactness", unit="decoder") as bar:
        for cell in cells:
            bar.set_postfix_str(cell.entry.name)
            out.append(_verdict(cell, model, captions, cell.entry.name in skipped))
            bar.update()
    return out


def _replayed(cell: Cell) -> bool:
    """False too where the loop cannot be imported: what is wrong with it is said elsewhere."""
    loop = attempt(lambda: resolve(cell.entry.spec.loop.target))
    return not isinstance(loop, Failure) and is_replayed(loop)


def _verdict(
    cell: Cell, model: ImageModel, captions: Callable[[], Sequence[str]], skipped: bool
) -> Verdict:
    from bench.judge.gate import check_decoder

    name, expect, spec = cell.entry.name, cell.entry.expect, cell.entry.spec
    if _replayed(cell):  # its codes are not meant to follow any distribution
        says = "accepted lengths are stated or recorded; only its times mean anything"
        return Verdict(name, REPLAYED, math.nan, says, expect, REPLAYED)
    late = Failure("an image of it ran into time_limit")
    found = (
        late if skipped else attempt(lambda: check_decoder(spec, cell.sampling, model, captions))
    )
    if isinstance(found, Failure):
        log.warning("the gate could not judge %s: %s", name, found.error)
        return Verdict(name, "not checked", math.nan, found.error, expect, "not checked")
    return Verdict(name, found.verdict, found.figure, found.detail, expect, found.text)
