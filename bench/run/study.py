"""The life of a run: a study is opened, run, and finished.

`open_study` loads the model, builds every decoder and examines the target; `run_study` decodes and
merges the rows; `finish` judges and scores them, and makes the tables. Of an interrupted run
`read_unfinished` shows what its rows give so far, without verdicts and quality figures, which come
after the last row.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from bench.analyse.analyse import analyse, export, require_file
from bench.analyse.fairness import below_floor
from bench.analyse.paired import drawn, pictures, rows_by_line
from bench.analyse.run import Run
from bench.config.schema import LoaderConfig, StudyConfig
from bench.errors import Interrupted
from bench.gate import judge
from bench.measure.device import prepare, provenance
from bench.prompts import load_prompts
from bench.run.contender import Study, examined_study, load_model
from bench.run.schedule import Job, all_jobs, parts
from bench.run.session import Session, measure_machine
from bench.store.columns import MERGED
from bench.store.facts import digest_of_rows, read_findings, read_study, write_findings
from bench.store.run_folder import open_folder, read_folder
from decoders.api import DecoderError
from decoders.cpu_info import processor
from decoders.interrupts import interruptible
from metrics import MetricError
from metrics.scores import Scorer, Scores

log = logging.getLogger(__name__)


@contextmanager
def open_study(config: StudyConfig, shard: str = "") -> Iterator[Study]:
    """Prepares a study for its first image, its folder open. shard: the name of one. Raises, before
    work starts where possible: ConfigError, PromptError, FolderError, DecoderError (a model or
    decoder that cannot be built, a prompt that the model cannot read)."""
    device = prepare(config.backend)
    origin = provenance(device)
    prompts = load_prompts(config.prompts, config.prompts_needed, config.replicate)
    # Rows of two machines must not share a folder: this decides their times.
    machine = {"cpu": origin.cpu, "gpu": origin.gpu, "torch": origin.versions["torch"]}
    machine |= processor()
    identity = dict(config=config.measured(), config_hash=config.hash, machine=machine)
    with open_folder(Path(config.run_dir), identity, shard) as folder:
        model = load_model(config, device, config.latency.sizes, config.quality.sizes)
        hashes = {**model.weights_sha256, **model.text.sha256()}  # some encoders are loaded apart
        model = replace(model, weights_sha256=hashes)
        yield examined_study(config, model, folder, origin, prompts)


def decode_jobs(study: Study, groups: Sequence[Sequence[Job]], name: str) -> None:
    """Decodes the jobs that have no rows yet. name: what the terminal shows."""
    config, folder = study.config, study.folder
    keys = [key for group in groups for job in group for key in job.keys]
    folder.resume(
        {key: study.prompts[key.prompt_index].text for key in keys},
        {contender.name: contender.digest for contender in study.contenders},
        {
            "rows": sum(len(job.indices) for job in all_jobs(config, study.contenders)),
            "weights": study.model.weights_sha256,
        },
        retry=config.retry_failed,
    )
    Session(study).run(groups, name)


def run_study(config: StudyConfig) -> Study:
    """Runs (or resumes) a study and merges its rows. Raises as `open_study`."""
    with open_study(config) as study:
        jobs = all_jobs(config, study.contenders)
        decode_jobs(study, parts(jobs, config.latency.block_count), config.name)
        study.rows = study.folder.merge([key for job in jobs for key in job.keys])
        return study


def finish(study: Study, scorer: Scorer | None = None) -> Run:
    """Judges and scores a run, writes what that found and the tables that follow from it, and
    returns all of it."""
    path, rows = study.path, study.rows
    verdicts = judge(study.variants, study.model, rows, study.config.gate)
    names = [contender.name for contender in study.contenders]
    scores = scores_of_pictures(scorer if study.model.draws else None, path, rows, names)
    require_file(path / MERGED)  # nothing is written into another folder of that name
    found = replace(read_findings(path), gate=verdicts, scores=scores, done=True)
    found = replace(found, rows=digest_of_rows(rows))
    write_findings(path, found)
    run = analyse(path, rows, read_study(path), found)
    if any(below_floor(name, run.roofline) for name in run.roofline):
        measure_machine(path, study.model)
        run = analyse(path, rows, read_study(path), read_findings(path))
    export(run)
    return run


def make_scorer(config: StudyConfig) -> Scorer | None:
    """Makes the study's scorer, before the run: missing metric weights then stop it at the start.
    Raises MetricError, ConfigError."""
    if config.metric is None or not config.quality.images or not config.keep_images:
        return None
    scorer: Scorer = config.metric.load(device=config.backend.device)
    fits = callable(getattr(scorer, "score", None))
    config.metric.require(fits, scorer, "a scorer (metrics.scores.Scorer)")
    return UsersScorer(config.metric, scorer)


@dataclass(frozen=True)
class UsersScorer:
    """A scorer whose errors name its metric."""

    config: LoaderConfig
    scorer: Scorer

    def score(self, images: Sequence[Path], captions: Sequence[str]) -> Scores:
        """As `Scorer.score`. Raises ConfigError where the scorer fails or returns no Scores."""
        scores = self.config.call(lambda: self.scorer.score(images, captions))
        fits = isinstance(scores, Scores)
        self.config.require(fits, scores, "metrics.scores.Scores from score()")
        return scores


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
            files = [folder / path for path in images.image]
            try:
                scores[label] = scorer.score(files, images.prompt.to_list())
            except (MetricError, DecoderError) as error:  # of the pictures, of the networks' files
                log.warning("no quality figures for %s: %s", label, error)
    return scores


@contextmanager
def explain_interrupts(config: StudyConfig) -> Iterator[None]:
    """Turns Ctrl-C and SIGTERM into Interrupted, which says how far the run came and how to go
    on."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt as stop:
        folder = read_folder(Path(config.run_dir))
        if not folder.rows:
            raise Interrupted(
                "interrupted before the first image was recorded; the same command starts again"
            ) from stop
        after = ", with what comes after the images: verdicts, quality figures, report"
        raise Interrupted(
            f"interrupted: {folder.progress} are recorded in {folder.path}; the same command "
            f"resumes{after if len(folder.rows) == folder.total else ''}\n"
            f"a table of what is there: python -m bench report {shlex.quote(str(folder.path))}"
        ) from stop


def read_unfinished(path: Path) -> Run | None:
    """What the rows of an unfinished run give so far; None for a finished one and where there are
    no rows. path: the run's folder, in which nothing is written."""
    findings = read_findings(path)
    if findings.done or not (folder := read_folder(path)).rows:
        return None
    rows, study = folder.table(sorted(folder.rows)).to_pandas(), read_study(path)
    run = analyse(path, rows, study, findings, partial="partial")
    done, every = {entry.name for entry in run.entries}, study["config"]["decoders"]
    waiting = [one["name"] for one in every if one["name"] not in done]
    none_yet = f"; none yet of {', '.join(waiting)}" if waiting else ""
    return replace(run, study=f"{run.study} (partial: {folder.progress}{none_yet})")
