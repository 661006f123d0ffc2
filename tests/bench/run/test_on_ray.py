"""`ray.shards=`: a run as tasks of Ray on this machine, of which one is killed, and one table."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest

from bench.__main__ import main
from tests.bench import fakes
from tests.bench.run.test_shards import UNTIMED, same

ROOT = Path(__file__).parents[3]
FEW = [
    fakes.SEARCHPATH, "study=fake", UNTIMED, "decoders=[fake_ar]", "quality.images=16",
    "quality.batch=1", "quality.reseeds=0", "loop.seconds=0.1", "backend.threads=1",
]  # fmt: skip


def workers(folder: Path) -> Iterator[psutil.Process]:
    """Processes below this one that have opened a shard of the run."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(file.path.startswith(str(folder / "shards")) for file in process.open_files()):
                yield process


@pytest.mark.slow
def test_a_run_on_ray_gives_the_same_table_also_where_a_worker_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else they wait behind everything else
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder, over, killed = tmp_path / "ray", threading.Event(), list[int]()

    def kill_one() -> None:
        while not over.wait(0.05) and not killed:
            found = [*workers(folder)] if any(folder.glob("rows/*.jsonl")) else []
            for process in found[:1]:
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        assert main(["run", *FEW, f"run_dir={folder}", "ray.shards=2"]) == 0
    finally:
        over.set()
        killer.join()
    assert killed, "a worker was killed"
    assert main(["run", *FEW, f"run_dir={tmp_path / 'alone'}"]) == 0
    found, alone = (pd.read_parquet(f / "records.parquet") for f in (folder, tmp_path / "alone"))
    pd.testing.assert_frame_equal(same(found), same(alone))
    assert (folder / "summary.csv").is_file(), "the last task has ended the run"
