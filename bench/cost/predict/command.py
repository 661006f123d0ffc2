"""`python -m bench predict`: predicted and measured speed-ups of a run, as tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bench.config.compose import compose_study
from bench.config.differences import MACHINES, differences
from bench.config.hydra_edge import own_settings
from bench.config.schedule import cells
from bench.config.schema import StudyConfig
from bench.console import complain, say
from bench.cost.predict import table
from bench.cost.predict.here import PredictConfig, rows_of
from bench.cost.predict.machines import asked
from bench.data.errors import BenchError, ConfigError
from bench.data.files import ready_folder
from bench.judge.speedup import every_latency_row
from bench.records.load import read_rows
from bench.records.rows import write_text
from bench.records.study import require_own
from bench.report.plots.predict import predicted_plot
from bench.report.table import csv_text, filled, terminal
from bench.run.session import opened


def cmd_predict(words: Sequence[str]) -> int:
    """Speed-ups that a run's acceptance predicts, here or on another machine.
    Predicts the speed-ups of a finished run from step costs and acceptance, and compares them
    with the measured ones. Takes the words of that run. Writes predicted.csv to
    run_dir/predict. With hardware=NAME nothing is timed: what the run's acceptance would give
    on a machine that is not here (projected), and papers' AR steps in floors. Of the run it
    takes study= or run_dir= alone. Writes projected.csv and projected.md there.
    Settings: study decoders run_dir ...
        predict.*       bench/cost/predict/here.py PredictConfig
        hardware=NAME   a machine (`list hardware`), or your own through hydra.searchpath
        model=NAME      with hardware=: at whose size (default: the run's own model)
        published=FILE  with hardware=: another table of published numbers
    Example: predict study=smoke
    """
    elsewhere = asked(words)
    if elsewhere is not None:
        return table.projection(elsewhere)
    settings, rest = own_settings(PredictConfig, "predict", words)
    config = compose_study(rest)
    folder = Path(config.run_dir) / "predict"
    rows, machine = read_run(config)
    ready_folder(folder)
    own = opened(config, 1)
    if machine != own.made.machine():
        raise ConfigError(
            f"{config.run_dir} was made on another machine: "
            f"{differences(machine, own.made.machine(), MACHINES)}; costs are to be measured on "
            "the machine of the run"
        )
    every = cells(config, own.model.sampling)
    found = rows_of(config, settings, own.model, every, rows, own.prompts[0].text)
    if not found:
        complain("no decoder of this run drafts and has a baseline: nothing to predict")
        return 1
    path = write_text(folder / "predicted.csv", csv_text(table.lines(found)))
    say(terminal(filled(table.SPEEDUPS, found)))
    say("\n" + terminal(table.parts(found)))
    plot = predicted_plot(pd.read_csv(path), f"Speed model: {config.name}", folder)[0]
    errors = [abs(row.error) for row in found if row.ran]
    say(
        f"\nmean size of the error: {100 * sum(errors) / len(errors):.1f} %, largest "
        f"{100 * max(errors):.1f} %"
    )
    say(f"saved: {path}, {plot}")
    return 0


def read_run(config: StudyConfig) -> tuple[pd.DataFrame, dict[str, str]]:
    """Latency rows of the study's folder that came out, each image as often as it was timed, and
    the machine that they were made on. Raises BenchError: no run there, of another version or
    configuration, unfinished or damaged, without latency rows."""
    folder = Path(config.run_dir)
    machine: dict[str, str] = require_own(folder, config)["machine"]
    ok = every_latency_row(read_rows(folder))
    if ok.empty:
        raise BenchError(
            f"{folder} has no timed images that count: it was run with latency.prompts=0, or on a "
            "busy machine; run it again with latency.prompts, when the machine is quiet"
        )
    return ok, machine
