"""Scores the pictures of a run by its study's metric."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bench.analyse.paired import drawn, pictures, rows_by_line
from bench.analyse.scorers import Scorer
from bench.config.schema import StudyConfig
from bench.prompts import Prompt
from bench.store.facts import Scores
from decoders.api import DecoderError
from metrics import MetricError

log = logging.getLogger(__name__)


def make_scorer(config: StudyConfig) -> Scorer | None:
    """Makes the study's scorer, before the run: missing metric weights then stop it at the start.
    Raises MetricError, ConfigError."""
    if config.metric is None or not config.quality.images or not config.keep_images:
        return None
    scorer: Scorer = config.metric.load(device=config.backend.device)
    fits = callable(getattr(scorer, "score", None))
    config.metric.require(fits, scorer, "a scorer (bench.analyse.scorers.Scorer)")
    return scorer


def scores_of_pictures(
    scorer: Scorer | None, folder: Path, rows: pd.DataFrame, names: Sequence[str]
) -> dict[str, Scores]:
    """The scores of the pictures of every line of the summary that has some. folder: of the run.
    Where they cannot be scored, a warning says why."""
    scores: dict[str, Scores] = {}
    if scorer is None:
        return scores
    for name in names:
        for label, part in rows_by_line(name, rows).items():
            images = pictures(drawn(part))
            if images.empty:
                continue
            columns = images.prompt_id, images.prompt, images.category
            prompts = [Prompt(*row) for row in zip(*columns, strict=True)]
            try:
                scores[label] = scorer.score([folder / path for path in images.image], prompts)
            except (MetricError, DecoderError) as error:  # of the pictures, of the networks' files
                log.warning("no quality figures for %s: %s", label, error)
    return scores
