"""launch=local, slurm and ray: real processes, of which some are killed, and one table."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest

from bench.__main__ import main
from bench.data.errors import ConfigError
from bench.run.launch.launchers import why
from bench.run.launch.task import Task, asked
from tests.bench import fakes

ROOT = Path(__file__).parents[4]
WORDS = [fakes.SEARCHPATH, "study=fake", "latency.prompts=0"]
VOLATILE = ("seconds_", "peak_memory", "started_at", "latency_")
HERE = {
    "local": ["launch=local"],
    "ray": ["launch=ray"],
    "slurm": ["launch=slurm", "launch.cluster=local", "launch.gpus=0", "launch.cpus=1"],
}
NEEDED = {"ray": "ray", "slurm": "submitit"}


@pytest.fixture(autouse=True)
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's workers wait behind everything else on a busy machine, unless asked not to."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def needs(name: str) -> None:
    package = NEEDED.get(name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'lantern-bench[{name}]'")


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Rows and summary of a run, but for when and how fast."""
    found = {
        "records": pd.read_parquet(folder / "records.parquet"),
        "summary": pd.read_csv(folder / "summary.csv"),
    }
    return {
        name: table[[c for c in table if not c.startswith(VOLATILE)]].map(str)
        for name, table in found.items()
    }


def workers(folder: Path) -> Iterator[psutil.Process]:
    """Processes below this one that have opened a shard of the run."""
    for process in psutil.Process().children(recursive=True):
        try:
            if any(str(folder / "shards") in file.path and file.path.endswith(".lock")
                   for file in process.open_files()):  # fmt: skip
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


@contextmanager
def killing(folder: Path, *how: signal.Signals) -> Iterator[list[int]]:
    """Each signal to another worker of the run, any of them, at some time while the block runs."""
    done, over, dice = list[int](), threading.Event(), random.Random(0)

    def work() -> None:
        while not over.wait(0.05) and len(done) < len(how):
            found = [one for one in workers(folder) if one.pid not in done]
            if found and any(folder.glob("rows/*/*.parquet")):
                over.wait(dice.uniform(0, 0.5))
                victim = dice.choice(found)
                with suppress(ProcessLookupError):
                    os.kill(victim.pid, how[len(done)])
                    done.append(victim.pid)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def run(folder: Path, *words: str) -> int:
    return main(["run", *WORDS, f"run_dir={folder}", *words])


FEW = [
    "decoders=[fake_ar]", "quality.images=32", "quality.batch=1", "quality.reseeds=0",
    "loop.seconds=0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict[str, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("calm")
    assert run(folder, *FEW) == 0
    return tables(folder)


KILLS = [signal.SIGKILL, signal.SIGTERM]


@pytest.mark.parametrize(
    ("name", "how"), [("local", KILLS), ("ray", KILLS), ("slurm", [signal.SIGUSR2])]
)
def test_workers_that_are_killed_or_told_to_stop_change_nothing(name, how, calm, tmp_path):
    needs(name)
    two = ["launch.retries=50", "launch.shards=2", "launch.workers=2"]
    with killing(tmp_path / "a", *how) as killed:
        assert run(tmp_path / "a", *FEW, *HERE[name], *two) == 0
    assert len(killed) == len(how), "workers were killed"
    found = tables(tmp_path / "a")
    for table in calm:
        pd.testing.assert_frame_equal(found[table], calm[table])
    assert set(found["records"].status) == {"ok"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of a dead parent")
def test_workers_of_a_killed_launcher_stop_and_the_same_command_goes_on(tmp_path):
    few = ["decoders=[fake_ar]", "quality.images=16", "quality.batch=1", "loop.seconds=0.3"]
    words = [*WORDS, *few, "quality.reseeds=0", *HERE["local"], "launch.workers=2"]
    folder = tmp_path / "a"
    asked_for = [sys.executable, "-m", "bench", "run", *words, f"run_dir={folder}"]
    launcher = subprocess.Popen(asked_for, env=os.environ | {"PYTHONPATH": str(ROOT)})
    while not recorded(folder):
        time.sleep(0.05)
    orphans = psutil.Process(launcher.pid).children(recursive=True)
    assert orphans
    launcher.kill()
    launcher.wait()
    assert not psutil.wait_procs(orphans, timeout=60)[1]
    assert len(recorded(folder)) < 16, "they were stopped"
    assert run(folder, *words[len(WORDS) :]) == 0
    assert recorded(folder) == ["ok"] * 16


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A shard of a slow run, for this process."""
    monkeypatch.setenv("PYTHONPATH", "")  # a task sets it
    few = ["decoders=[fake_ar]", "quality.images=6", "quality.batch=1", "quality.reseeds=0"]
    return Task((*WORDS, *few, "loop.seconds=0.3", f"run_dir={tmp_path / 'a'}"), "0/1")


def recorded(folder: Path) -> list[str]:
    """How each row so far came out."""
    return [pd.read_parquet(path).status[0] for path in folder.glob("rows/*/[!.]*.parquet")]


def test_a_schedulers_signal_stops_a_worker_at_once_and_fails_no_image(task, tmp_path):
    def requeue(*_):
        sys.exit(7)  # as submitit does once it has queued the job again

    def when_it_is_at_work():
        while not recorded(tmp_path / "a"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, requeue)
    thread = threading.Thread(target=when_it_is_at_work, daemon=True)
    try:
        thread.start()
        with pytest.raises(SystemExit) as stop:
            task()
        assert stop.value.code == 7 and signal.getsignal(signal.SIGUSR2) is requeue
    finally:
        signal.signal(signal.SIGUSR2, before)
    found = recorded(tmp_path / "a")
    assert len(found) < 6 and set(found) == {"ok"}
    assert not list((tmp_path / "a" / "shards").glob("*.trying")), "nobody died of the image"
    assert task() == 0 and recorded(tmp_path / "a") == ["ok"] * 6


def test_a_scheduler_that_ignores_a_signal_is_left_to(task, tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    thread = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        thread.start()
        assert task() == 0
        thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [1] and recorded(tmp_path / "a") == ["ok"] * 6


def test_a_worker_that_crashes_has_not_done_its_shard(tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text(
        "import bench.run.runner as runner\n"
        "def crash(*_):\n    raise RuntimeError('no such thing')\n"
        "runner.run_shard = crash\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["decoders=[fake_ar]", "quality.images=2", "launch=local", "launch.workers=1"]
    assert run(tmp_path / "a", *words) == 1
    shown = capsys.readouterr().err
    assert "shard 0/1 is not complete: exit status 1" in shown and "no such thing" in shown
    assert "no FID, no table: rows are missing, N = 0" in shown
    assert not recorded(tmp_path / "a"), "nobody else decodes it without a word"
    assert not (tmp_path / "a" / "summary.csv").exists()


def test_a_task_finds_modules_in_the_launchers_order(tmp_path, monkeypatch):
    # Ray starts workers with a path of its own; a package called `tests` may lie in site-packages.
    theirs = Task(("study=fake",), path=(str(tmp_path), "/other"))
    monkeypatch.setattr(sys, "path", ["/ray", "/other"])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("bench.__main__.main", lambda _: sys.path[:])
    assert theirs() == [str(tmp_path), "/other", "/ray"]


def test_the_error_of_a_refused_shard_is_said_not_the_end_of_its_log(tmp_path):
    log = tmp_path / "0-of-1.log"
    log.write_text("decoding\nerror: k must be at most 32\nbye\n\n")
    assert why(2, log) == f"exit status 2: k must be at most 32 (see {log})"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["launch=locl"], "'local'"),
        (["launch.workers=2"], "name it too"),
        (["launch=local", "shard=0/2"], "give one of the two"),
        (["launch=local", "launch.gpus=1"], "unknown setting 'launch.gpus'"),
        (["launch=local", "launch.workers=0"], "launch.workers"),
        (["shard="], "expected shard=i/n"),
        (["launch=local", "latency.prompts=2", "quality.images=0"], "workers time nothing"),
        (["launch=slurm", "launch.cluster=lsf"], "'lsf'"),
    ],
)
def test_bad_launches_say_what_to_do(words, expected, tmp_path, capsys):
    assert run(tmp_path / "a", *words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and expected in shown and "Traceback" not in shown
    assert not (tmp_path / "a").exists()


def test_a_cluster_of_ones_own_and_threads(tmp_path):
    (tmp_path / "launch").mkdir()
    mine = "defaults: [slurm, _self_]\nname: mine\nworkers: 3\ncpus: 2\n"
    mine += "options: {slurm_partition: gpu}\n"
    (tmp_path / "launch" / "mine.yaml").write_text(mine)
    place = f"hydra.searchpath=[file://{tmp_path}]"
    found = asked(["launch=mine", place, "seed=3", "launch.shards=9"])
    assert found.words == [place, "seed=3"] and found.launch.count == 9
    assert found.launch.options == {"slurm_partition": "gpu"}
    assert found.launch.threads_of(16) == 2
    assert asked(["launch=local", "launch.workers=3"]).launch.threads_of(8) == 2
    assert asked(["launch=local", "launch.workers=3"]).launch.threads_of(1) == 1
    (tmp_path / "launch" / "mine.yaml").write_text("where: [1]\nname: mine\n")
    with pytest.raises(ConfigError, match=r"launch\.where"):
        asked(["launch=mine", place])
