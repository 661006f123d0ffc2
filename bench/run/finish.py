"""Finishes a run after its records: exactness gate, roofline, fairness, quality figures,
summary.csv. Says of an interrupted run how far it came, and summarises what is there.

`python -m bench report` on an unfinished run summarises its records so far, without verdicts,
quality figures and floors other than AR's, which come after the last record. The report says in its
title what it is of.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from bench.config.schema import DecoderVariant, StudyConfig
from bench.console import interruptible, progress
from bench.data.errors import Failure, Interrupted, attempt
from bench.judge.fairness import FAIRNESS, ROOFLINE, judge, roofline
from bench.judge.paired import baselines_of
from bench.judge.scorers import Scorer
from bench.measure.device import available_cores
from bench.records.folder import read_folder
from bench.records.load import EXACTNESS, make_run
from bench.records.run_data import RunData
from bench.run.runner import RunResult
from bench.run.summary import make_summary, write_csv
from decoders.api import ImageModel, Sampling
from decoders.compose import is_synthetic

if TYPE_CHECKING:
    from bench.judge.gate import GateReport, RealModel
    from decoders.compose import DecoderSpec

PARTIAL = "partial"
DECODERS_OF_A_PROCESS = 3  # that the gate judges, at least
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def make_scorer(config: StudyConfig) -> Scorer | None:
    """Makes the study's scorer, before the run: missing metric weights then stop it at the start.

    Raises MetricError, ConfigError.
    """
    if config.metric is None or not config.quality.images or not config.keep_images:
        return None
    scorer: Scorer = config.metric.load(device=config.backend.device)
    fits = callable(getattr(scorer, "score", None))
    config.metric.require(fits, scorer, "a scorer (bench.judge.scorers.Scorer)")
    return scorer


def finish(config: StudyConfig, result: RunResult, scorer: Scorer | None = None) -> pd.DataFrame:
    """Judges, scores and summarises the rows of a run; returns the summary."""
    path, rows, every = result.path, result.rows, result.variants
    floors = roofline(path, result.model, every, rows)
    fair = judge(rows, baselines_of(every), floors)
    write_csv(path / ROOFLINE, floors)
    write_csv(path / FAIRNESS, pd.DataFrame(fair))
    captions = list(dict.fromkeys(rows.sort_values("prompt_index").prompt))
    # Without a gate the table says all the same which decoders are synthetic.
    checked = [v for v in every if config.gate or is_synthetic(v.entry.spec)]
    judged = run_gate(result.model, checked, lambda: captions) if checked else []
    write_csv(path / EXACTNESS, pd.DataFrame([report.line for report in judged]))
    exactness = {report.decoder: report.text for report in judged}
    scorer = scorer if result.model.draws else None
    summary = make_summary(path, rows, every, fair, scorer=scorer, exactness=exactness)
    summary.write(path)
    return summary.table


def run_gate(
    model: ImageModel, every: Sequence[DecoderVariant], captions: Callable[[], Sequence[str]]
) -> list[GateReport]:
    """Runs the gate on every decoder; one it cannot judge is "not checked", with the error. Several
    decoders are judged at once, each by one thread, where the cores allow it.

    captions: prompts of the model, for greedy codes of a target that is not built in."""
    from bench.judge.gate import GateReport, RealModel

    judged, real = list[GateReport](), RealModel.of(model)
    with progress(len(every), "exactness", unit="decoder") as bar, reports(every, real) as found:
        for variant, report in zip(every, found, strict=True):
            judged.append(_with_greedy_codes(report, variant, model, captions))
            bar.set_postfix_str(f"{variant.name}: {judged[-1].verdict}")
            bar.update()
    return judged


@contextmanager
def reports(
    every: Sequence[DecoderVariant], real: RealModel
) -> Iterator[Iterator[GateReport | Failure]]:
    """The gate's reports in the order of the decoders, from processes where those gain: to start
    one takes as long as a few checks."""
    tasks = [(variant.entry.spec, variant.sampling, real) for variant in every]
    processes = min(available_cores(), len(tasks) // DECODERS_OF_A_PROCESS)
    if processes < 2:
        yield (_report_of(task) for task in tasks)
        return
    spawn, others = multiprocessing.get_context("spawn"), {*multiprocessing.active_children()}
    pool = ProcessPoolExecutor(processes, spawn, end_with_parent)
    try:
        yield pool.map(_report_of, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in {*multiprocessing.active_children()} - others:  # of an interrupted run
            process.terminate()


def end_with_parent() -> None:
    """Has Linux end this process with the one that started it, however that ends: nobody waits for
    its reports, and it would take a core from the next run's timings."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _report_of(task: tuple[DecoderSpec, Sampling, RealModel]) -> GateReport | Failure:
    from bench.judge.gate import check_decoder

    return attempt(lambda: check_decoder(*task))


def _with_greedy_codes(
    report: GateReport | Failure,
    variant: DecoderVariant,
    model: ImageModel,
    captions: Callable[[], Sequence[str]],
) -> GateReport:
    """The gate's report; of a decoder that it finds exact after comparing greedy codes as well."""
    from bench.judge.code_differences import greedy_difference
    from bench.judge.gate import GateReport

    if not isinstance(report, Failure) and report.verdict == "exact":
        spec, sampling, exact = variant.entry.spec, variant.sampling, report
        codes = attempt(lambda: greedy_difference(model, spec, sampling, captions))
        if isinstance(codes, Failure):
            report = codes
        elif codes[0]:
            report = replace(exact, verdict="broken", figure=1.0, detail=codes[0], sampled=0.0)
        else:
            report = replace(exact, detail=f"{exact.detail} {codes[1]}".strip())
    if isinstance(report, Failure):
        advice = "mend that and check again, or run without verdicts (gate=false)"
        detail = f"on a small random model it raised {report.error}; {advice}"
        report = GateReport("not checked", math.nan, detail)
    return replace(report, decoder=variant.name, expect=variant.entry.expect)


@contextmanager
def explain_interrupts(config: StudyConfig, words: Sequence[str]) -> Iterator[None]:
    """Turns Ctrl-C and SIGTERM into Interrupted, which says how far the run came and how to go on.
    words: the study's, from the command line."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt as stop:
        folder = read_folder(Path(config.run_dir))
        if not folder.records:
            raise Interrupted(
                "interrupted before the first image was recorded; the same command starts again"
            ) from stop
        after = ", with what comes after the images: verdicts, quality figures, report"
        raise Interrupted(
            f"interrupted: {folder.progress} are recorded in {folder.path}; the same command "
            f"resumes{after if len(folder.records) == folder.total else ''}\n"
            f"a table of what is there: python -m bench report {shlex.join(words)}".rstrip()
        ) from stop


def read_unfinished(config: StudyConfig) -> RunData | None:
    """Summarises the records of an unfinished run and writes nothing; None for a finished one and
    where there are no records."""
    folder = read_folder(Path(config.run_dir))
    if not folder.records or (folder.path / "summary.csv").exists():
        return None
    rows = folder.table(sorted(folder.records)).to_pandas()
    every = _variants(config, rows)
    table = make_summary(folder.path, rows, every, scorer=None, exactness={}).table
    table = table.assign(status=table.status.replace("ok", PARTIAL))
    run = make_run(folder.path, rows, table)
    waiting = [e.name for e in config.decoders if e.name not in {v.name for v in every}]
    none_yet = f"; none yet of {', '.join(waiting)}" if waiting else ""
    return replace(run, study=f"{run.study} ({PARTIAL}: {folder.progress}{none_yet})")


def _variants(config: StudyConfig, rows: pd.DataFrame) -> list[DecoderVariant]:
    """Lists the decoders with rows, in the study's order; temperature and guidance as recorded."""
    first = rows[rows.protocol != "reseed"].drop_duplicates("decoder").set_index("decoder")
    return [
        DecoderVariant(e, Sampling(float(first.temperature[e.name]), float(first.cfg[e.name])))
        for e in config.decoders
        if e.name in first.index
    ]
