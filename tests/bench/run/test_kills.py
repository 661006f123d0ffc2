"""A run that is interrupted or killed at any moment resumes to the table of a run without that."""

import multiprocessing
import os
import random
import time
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from bench.run.study import finish, run_study
from tests.bench import fakes
from tests.bench.run.test_shards import same

TIMES = [f"latency_{kind}_s" for kind in ("mean", "p50", "p95")]
TIMES += [f"speedup{end}" for end in ("", "_lo", "_hi", "_least", "_greatest")]
LOADED = [
    "bench.commands.run", "bench.config.compose", "bench.report.table", "bench.run.study",
    "bench.run.shards", "decoders.execution.cpu.execution", "torch._dynamo",
]  # fmt: skip
FEW = "decoders=[fake_ar,fake_spec]", "latency.prompts=3"


def require_same(one: Path, other: Path) -> None:
    """Two finished runs hold the same but for times."""
    assert_frame_equal(*(same(pd.read_parquet(run / "records.parquet")) for run in (one, other)))
    tables = [pd.read_csv(folder / "summary.csv") for folder in (one, other)]
    assert_frame_equal(*(table.drop(columns=[*TIMES, "peak_memory_mb"]) for table in tables))


@pytest.fixture
def whole(fake_run) -> Path:
    """The folder of a run without kills."""
    _, result = fake_run(*FEW)
    finish(result)
    return result.path


class Killed(BaseException):
    """As SIGKILL: nothing handles it."""


@pytest.mark.parametrize("at", [2, 5, 8, 12, 16, 17, 19])
def test_a_kill_while_a_file_is_written_gives_the_table_of_a_run_without_kills(
    fake_study, whole, monkeypatch, tmp_path, at
):
    """At study.json, a record (of which half is left), captions, the merge, a table."""
    config, sync, count = fake_study(*FEW, f"run_dir={tmp_path / 'killed'}"), os.fsync, [0]

    def kill(file: int) -> None:
        count[0] += 1
        if count[0] == at:
            os.ftruncate(file, max(os.fstat(file).st_size - 10, 0))
            raise Killed
        sync(file)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(os, "fsync", kill)
        finish(run_study(config))
    finish(run_study(config))
    require_same(tmp_path / "killed", whole)


@pytest.mark.slow
def test_four_kills_at_random_moments_lose_at_most_the_call_in_flight(tmp_path, monkeypatch):
    """Processes of a server that has loaded everything and decoded nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context, draw = multiprocessing.get_context("forkserver"), random.Random(0)
    # For the server: torch-fidelity installs a package named "tests" as well.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    context.set_forkserver_preload([*LOADED, fakes.__name__])
    folders = [tmp_path / "killed", tmp_path / "whole"]
    few = ["decoders=[fake_ar,fake_spec]", "quality.batch=1", "loop.seconds=0.02"]
    killed, unkilled = (
        ["run", fakes.SEARCHPATH, "study=fake", *few, f"run_dir={folder}"] for folder in folders
    )

    def run(words: list[str], seconds: float | None = None) -> float:
        """Runs for so long, or to the end; how long that took."""
        process, began = context.Process(target=fakes.run_quickly, args=(words,)), time.monotonic()
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        return time.monotonic() - began

    run(["--version"])  # starts the server
    load = run(unkilled)
    records: list[str] = []
    for _ in range(4):
        run(killed, load * draw.uniform(0.3, 1.0) + draw.uniform(0, 0.5))
        before, records = records, [*map(str, fakes.recorded(folders[0]))]
        assert {*before} <= {*records}, "what was recorded stays"
    run(killed)
    assert len(fakes.recorded(folders[0])) == 26, "no image was recorded twice"
    assert not list(tmp_path.rglob(".tmp-*"))
    require_same(*folders)
