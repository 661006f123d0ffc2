"""Finishes a run after its last row: exactness gate and quality figures, whose results are facts of
the run, then the tables. Says of an interrupted run how far it came.

`python -m bench report` on an unfinished run shows what its rows give so far, without verdicts and
quality figures, which come after the last row. The report says in its title what it is of.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import multiprocessing
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.analyse import analyse, export, load
from bench.analyse.fairness import below_floor
from bench.analyse.paired import drawn, pictures, rows_by_line
from bench.analyse.run import Run
from bench.config.schema import DecoderVariant, StudyConfig
from bench.console import progress
from bench.data.errors import Failure, Interrupted, attempt
from bench.data.files import write_text
from bench.gate import GateReport, RealModel, check_decoder
from bench.measure.device import available_cores
from bench.run.code_differences import greedy_difference
from bench.run.runner import RunResult, measure_machine
from bench.store.facts import Verdict, read_findings, read_study, write_findings
from bench.store.run_folder import read_folder
from decoders.api import DecoderError, ImageModel
from decoders.compose import BrokenModule, is_synthetic, resolve
from decoders.interrupts import interruptible, stop_if_interrupted
from metrics import MetricError
from metrics.scores import Scorer, Scores

log = logging.getLogger(__name__)
DECODERS_OF_A_PROCESS = 3  # that the gate judges, at least
SLACK = 1e-4  # of the float32 figures of a recorded node
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def make_scorer(config: StudyConfig) -> Scorer | None:
    """Makes the study's scorer, before the run: missing metric weights then stop it at the start.
    Raises MetricError, ConfigError."""
    if config.metric is None or not config.quality.images or not config.keep_images:
        return None
    scorer: Scorer = config.metric.load(device=config.backend.device)
    fits = callable(getattr(scorer, "score", None))
    config.metric.require(fits, scorer, "a scorer (metrics.scores.Scorer)")
    return scorer


def finish(config: StudyConfig, result: RunResult, scorer: Scorer | None = None) -> Run:
    """Judges and scores a run, writes what that found and the tables that follow from it, and
    returns all of it."""
    path, rows, every = result.path, result.rows, result.variants
    captions = list(dict.fromkeys(rows.sort_values("prompt_index").prompt))
    # Without a gate the table says all the same which decoders are synthetic.
    checked = [v for v in every if config.gate or is_synthetic(v.entry.spec)]
    reports = run_gate(result.model, checked, lambda: captions) if checked else []
    gate = {r.decoder: Verdict(r.text, r.detail, r.figure, r.line["expected"]) for r in reports}
    gate |= bounds_exceeded(every, rows, gate)
    scorer = scorer if result.model.draws else None
    scores = scores_of_pictures(scorer, path, rows, [variant.name for variant in every])
    write_findings(path, replace(read_findings(path), gate=gate, scores=scores, done=True))
    run = load(path)
    if any(below_floor(name, run.roofline) for name in run.roofline):
        measure_machine(path, result.model)
        run = load(path)
    export(run)
    return run


def bounds_exceeded(
    every: Sequence[DecoderVariant], rows: pd.DataFrame, gate: Mapping[str, Verdict]
) -> dict[str, Verdict]:
    """`broken` for each decoder whose rule bounds the output and is further away at a recorded node
    of the run itself."""
    broken = {}
    for variant in every:
        rule, part = variant.entry.spec.acceptance, rows[rows.decoder == variant.name]
        kind = attempt(partial(resolve, rule.target)) if rule else None
        part = part[part.status == "ok"]
        drawn_codes = len(part) and not variant.sampling.greedy
        if not (drawn_codes and getattr(kind, "bounds_output", False)):
            continue
        tv, declared = (
            np.concatenate(part[name].to_list()) for name in ("tv_output", "tv_declared_bound")
        )
        if not len(tv) or (excess := tv - declared).max() <= SLACK:
            continue
        worst = int(excess.argmax())
        detail = (
            f"at {int((excess > SLACK).sum())} of {len(tv)} recorded nodes of this run the output "
            f"is further from p than the rule declares: output TV {tv[worst]:.4f} where "
            f"{declared[worst]:.4f} is declared"
        )
        before = gate.get(variant.name)
        expected = "exact or relaxed" if before is None else before.expected
        broken[variant.name] = Verdict(
            f"broken (TV {tv[worst]:.4f})", detail, float(tv[worst]), expected
        )
    return broken


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


def run_gate(
    model: ImageModel,
    every: Sequence[DecoderVariant],
    captions: Callable[[], Sequence[str]],
    kept: Path | None = None,
    fell: Callable[[GateReport], None] = lambda report: None,
    judge: Callable[..., GateReport] | None = None,
) -> list[GateReport]:
    """Runs the gate on every decoder; one it cannot judge is "not checked", with the error. Of one
    that it finds exact, greedy codes are compared as well. Several decoders are judged at once,
    each by one thread, where the cores allow it. captions: prompts of the model, for greedy codes
    of a target that is not built in; kept: a file in which verdicts stay until all are there; fell:
    called with each; judge: in place of `check_decoder`."""
    judged, real = read_reports(kept), RealModel.of(model)
    left = [variant for variant in every if variant.name not in judged]
    for one in judged.values():
        fell(one)
    with (
        progress(len(left), "exactness", unit="decoder") as bar,
        reports(left, real, judge or check_decoder) as found,
    ):
        for variant, outcome in zip(left, found, strict=True):
            report: GateReport | Failure = outcome
            spec, sampling = variant.entry.spec, variant.sampling
            if not isinstance(report, Failure) and report.verdict == "exact":
                codes = attempt(partial(greedy_difference, model, spec, sampling, captions))
                if isinstance(codes, Failure):
                    report = codes
                elif codes[0]:
                    broken = replace(report, verdict="broken", figure=1.0, sampled=0.0)
                    report = replace(broken, detail=codes[0])
                else:
                    report = replace(report, detail=f"{report.detail} {codes[1]}".strip())
            done = not_checked(report) if isinstance(report, Failure) else report
            done = replace(done, decoder=variant.name, expect=variant.entry.expect)
            judged[variant.name] = done
            fell(done)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                lines = [asdict(replace(one, evidence={})) for one in judged.values()]
                write_text(kept, json.dumps(lines))
            bar.set_postfix_str(f"{variant.name}: {done.verdict}")
            bar.update()
            stop_if_interrupted()
    if kept is not None:
        kept.unlink(missing_ok=True)
    return [judged[variant.name] for variant in every]


def read_reports(kept: Path | None) -> dict[str, GateReport]:
    """The verdicts in a file, by decoder; none where there is no such file, or a damaged one."""
    if kept is None or not kept.is_file():
        return {}
    try:
        reports = [GateReport(**one) for one in json.loads(kept.read_bytes())]
    except (ValueError, TypeError):
        return {}
    return {report.decoder: report for report in reports}


def not_checked(failure: Failure) -> GateReport:
    """The report on a decoder that raised something."""
    imports = failure.error.startswith(BrokenModule.__name__)  # it says what to mend
    where, mend = ("it", "then") if imports else ("on a small random model it", "mend that and")
    detail = f"{where} raised {failure.error}; {mend} check again, or run without verdicts"
    return GateReport("not checked", math.nan, f"{detail} (gate=false)")


@contextmanager
def reports(
    every: Sequence[DecoderVariant],
    real: RealModel,
    judge: Callable[..., GateReport] = check_decoder,
) -> Iterator[Iterator[GateReport | Failure]]:
    """The gate's reports in the order of the decoders, from processes where those gain: to start
    one takes as long as a few checks."""
    tasks = [(judge, variant.entry.spec, variant.sampling, real) for variant in every]
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


def _report_of(task: tuple[Any, ...]) -> GateReport | Failure:
    judge, *of = task
    return attempt(lambda: judge(*of))


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
