"""What a run recorded: its rows, the machine that it was made on, what it charged to a step."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from bench.config.differences import MACHINES, differences
from bench.config.schema import StudyConfig
from bench.errors import BenchError, ConfigError
from bench.judge.paired import every_latency_row
from bench.measure.device import provenance
from bench.predict.model import StepSeconds
from bench.records import schema as records
from bench.records.study import read_identity
from decoders.api import ImageModel


def read_run(config: StudyConfig) -> pd.DataFrame:
    """Latency rows of the study's folder that came out, each image as often as it was timed. Raises
    BenchError: no run there, of another version or configuration, unfinished or damaged, without
    latency rows."""
    folder = Path(config.run_dir)
    found = read_identity(folder)
    if wrong := records.other_version(folder / "records.parquet"):
        raise BenchError(wrong)
    if found["config_hash"] != config.hash:
        raise ConfigError(
            f"{folder} was made with other settings: "
            f"{differences(found['config'], config.measured())}; name its study and the overrides "
            "that it was run with"
        )
    ok = every_latency_row(rows_in(folder))
    if ok.empty:
        raise BenchError(
            f"{folder} has no timed images that count: it was run with latency.prompts=0, or on a "
            "busy machine; run it again with latency.prompts, when the machine is quiet"
        )
    return ok


def rows_in(folder: Path) -> pd.DataFrame:
    """All rows of a finished run. Raises BenchError where there are none, or they are damaged."""
    path = folder / "records.parquet"
    if not path.is_file():
        raise BenchError(f"{folder} holds no finished run; `python -m bench run` finishes it")
    rows = records.read(path)
    if rows is None:
        raise BenchError(f"{path} is damaged; `python -m bench run` with the same words mends it")
    return rows.to_pandas()


def same_machine(config: StudyConfig, model: ImageModel) -> None:
    """ConfigError where the run was made on another machine than this one."""
    theirs = read_identity(Path(config.run_dir))["machine"]
    ours = provenance(model.device).machine()
    if theirs != ours:
        raise ConfigError(
            f"{config.run_dir} was made on another machine: "
            f"{differences(theirs, ours, MACHINES)}; costs are to be measured on the machine of "
            "the run"
        )


def recorded_step(rows: pd.DataFrame) -> StepSeconds:
    """Mean seconds of a step's parts as a run's rows have them; NaN where they were not told apart
    (a step that is one launch)."""
    steps = float(rows.nfe.sum())

    def part(name: str) -> float:
        total = float(rows[f"seconds_{name}"].sum())
        return total / steps if total > 0 else math.nan

    whole = float((rows.seconds_total - rows.seconds_prefill).sum()) / steps
    return StepSeconds(
        prefill=float(rows.seconds_prefill.mean()),
        step=whole,
        draft=part("draft"),
        forward=part("forward"),
        accept=part("accept"),
    )
