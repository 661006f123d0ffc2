"""After the records: exactness gate, roofline, fairness, quality figures, summary.csv."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.config.plugins import call, require_returned
from bench.config.schema import DecoderVariant, StudyConfig
from bench.console import progress, warnings_once
from bench.data.errors import Failure, TimeLimitError, attempt
from bench.judge.fairness import judge, write_fairness
from bench.judge.quality import Scorer
from bench.judge.roofline import roofline
from bench.run.guard import Guard
from bench.run.runner import RunResult
from bench.run.summary import summarise, write_csv
from decoders.api import ImageModel

log = logging.getLogger(__name__)
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
    scorer: Scorer = call(config.metric, device=config.backend.device)
    fits = callable(getattr(scorer, "score", None))
    require_returned(config.metric, scorer, fits, "a scorer (bench.judge.quality.Scorer)")
    return scorer


def finish(config: StudyConfig, result: RunResult, scorer: Scorer | None = None) -> pd.DataFrame:
    """Judges, scores and summarises the rows of a run; returns the summary."""
    path, rows, every = result.path, result.rows, result.variants
    floors = roofline(path, result.model, every, rows)
    fair = judge(rows, config.baselines, floors, config.fairness)
    write_fairness(path, fair)
    judged = _judged(result) if config.gate else []
    write_csv(
        path / "exactness.csv",
        pd.DataFrame([v.cells() for v in judged], columns=list(VERDICT_COLUMNS)),
    )
    exactness = {verdict.decoder: verdict.text for verdict in judged}
    scorer = scorer if result.model.draws else None
    with warnings_once():
        return summarise(path, rows, every, fair, scorer=scorer, exactness=exactness)


def _judged(result: RunResult) -> list[Verdict]:
    """The gate's verdicts on the decoders of a run."""
    captions = list(dict.fromkeys(result.rows.sort_values("prompt_index").prompt))
    # Where an image ran into the time limit the gate could wait for ever.
    late = result.rows.decoder[result.rows.error.str.startswith(TimeLimitError.__name__)]
    return verdicts(result.model, result.variants, lambda: captions, set(late))


def verdicts(
    model: ImageModel,
    every: Sequence[DecoderVariant],
    captions: Callable[[], Sequence[str]],
    skipped: Collection[str] = (),
) -> list[Verdict]:
    """The gate's verdict on every decoder; one it cannot judge is "not checked", with the error,
    and so is one of `skipped`, which ran into the time limit. captions: prompts of the model, for
    drafters that are judged on images of it. Raises SharedStateError."""
    judged, guard = list[Verdict](), Guard(model, every)
    with progress(len(every), "exactness", unit="decoder") as bar:
        for variant in every:
            bar.set_postfix_str(variant.name)
            judged.append(_verdict(variant, model, captions, variant.name in skipped))
            guard.check(variant)
            bar.update()
    return judged


def _verdict(
    variant: DecoderVariant,
    model: ImageModel,
    captions: Callable[[], Sequence[str]],
    skipped: bool,
) -> Verdict:
    from bench.judge.gate import check_decoder

    name, expect, spec = variant.name, variant.entry.expect, variant.entry.spec
    report: Any = Failure("an image of it ran into time_limit")
    if not skipped:
        report = attempt(lambda: check_decoder(spec, variant.sampling, model, captions))
    if isinstance(report, Failure):
        log.warning("the gate could not judge %s: %s", name, report.error)
        return Verdict(name, "not checked", math.nan, report.error, expect, "not checked")
    return Verdict(name, report.verdict, report.figure, report.detail, expect, report.text)
