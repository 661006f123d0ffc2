"""A run in shards, by hand or as tasks of Ray: which process decodes an image changes nothing of
it, and the last one ends the run."""

import errno
import fcntl
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
from bench.config.compose import compose_study
from bench.errors import ConfigError, FolderError, InUseError
from bench.run.shards import RunSettings, Shard, require_machine, run_shard
from bench.run.study import run_study
from bench.store.facts import read_study
from bench.store.run_folder import open_folder
from tests.bench import fakes
from tests.tiny import short

UNTIMED = "latency.prompts=0"
OF_THE_CALL = ("seconds_", "cpu_", "peak_memory", "started_at", "batch")


def same(rows: pd.DataFrame) -> pd.DataFrame:
    """What does not depend on which images were decoded together, or when."""
    return rows[[c for c in rows if not c.startswith(OF_THE_CALL)]].map(str)


def sharded(config, count: int) -> pd.DataFrame:
    """The rows of a run in so many shards."""
    for index in range(count):
        run_shard(config, Shard(index, count))
    before = len(fakes.CALLS)
    rows = run_study(config).rows
    assert len(fakes.CALLS) == before, "the run itself decodes nothing again"
    return rows


def test_any_number_of_shards_gives_the_same_rows(fake_study, fake_run, tmp_path):
    whole, parts = fake_run(UNTIMED)[1].rows, fake_study(UNTIMED, f"run_dir={tmp_path / 'parts'}")
    assert same(sharded(parts, 3)).equals(same(whole))


@pytest.mark.slow
def test_shards_of_the_embedded_model_give_the_same_rows(tmp_path, monkeypatch):
    """Its layers, its kernel and its tokenizer round alike, whatever else is in the batch."""
    monkeypatch.setattr("decoders.tiny.bundle.load", short.load)
    words = [
        "study=main", "decoders=[lantern_chain]", UNTIMED, "quality.reseeds=0",
        "quality.pairs=24", "quality.images=3", "quality.batch=2", "backend.threads=1",
    ]  # fmt: skip
    whole, parts = (compose_study([*words, f"run_dir={tmp_path / name}"]) for name in "wp")
    rows = run_study(whole).rows
    for name in ("tv_output", "tv_declared_bound", "tv_output_bound", "tv_shift", "bound", "codes"):
        assert (rows[name].map(len) > 0).any(), f"{name}: there is something to compare"
    pd.testing.assert_frame_equal(same(sharded(parts, 3)), same(rows))


def test_a_shard_times_nothing_and_leaves_that_to_the_run(fake_study):
    config = fake_study("decoders=[fake_ar]")
    assert not run_shard(config, Shard(0, 2)), "there is more to come"
    assert {size for _, _, size in fakes.CALLS} == {3}, "no call of one image"
    rows = run_study(config).rows
    assert rows.protocol.value_counts().to_dict() == {"quality": 6, "reseed": 6, "latency": 4}
    with pytest.raises(ConfigError, match="timed images alone"):
        run_shard(fake_study("quality.images=0", "name=timed"), Shard(0, 2))


def test_the_last_shard_ends_the_run(tmp_path, capsys):
    words = ["run", fakes.SEARCHPATH, "study=fake", f"run_dir={tmp_path}", UNTIMED]
    assert main([*words, "shard=0/2"]) == 0
    assert "shard 0/2 is done, 0 of its images failed" in capsys.readouterr().out
    assert not (tmp_path / "summary.csv").exists()
    assert main([*words, "shard=1/2"]) == 0
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 4
    (tmp_path / "summary.csv").unlink()
    said = read_study(tmp_path)
    identity = {key: said[key] for key in ("config", "config_hash", "machine")}
    with open_folder(tmp_path, identity, shard="2-of-3"):
        assert main([*words, "shard=1/2"]) == 0, "a shard that ends later finishes the run"
    assert not (tmp_path / "summary.csv").exists()


def test_shards_share_a_folder_and_a_run_has_it_alone(fake_study):
    config = fake_study(UNTIMED)
    path = Path(config.run_dir)
    own = {"config": config.measured(), "config_hash": config.hash, "machine": {}}
    with open_folder(path, own, shard="0-of-2"), open_folder(path, own, shard="1-of-2"):
        with (
            pytest.raises(InUseError, match="another process has shard 0-of-2"),
            open_folder(path, own, shard="0-of-2"),
        ):
            pass
        with pytest.raises(InUseError, match="shards of it are"), open_folder(path, own):
            pass
    with (
        open_folder(path, own),
        pytest.raises(InUseError, match="another run is writing"),
        open_folder(path, own, shard="0-of-2"),
    ):
        pass


def test_a_shared_file_system_that_is_late_or_locks_nothing(fake_study, monkeypatch):
    config = fake_study(UNTIMED, "decoders=[fake_ar]", "quality.reseeds=0")
    run_shard(config, Shard(0, 2))
    real = Path.exists

    def late(path: Path) -> bool:
        return path.name != "study.json" and real(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", late)
        assert run_shard(config, Shard(1, 2)), "the folder's listing has it"

    def unlocked(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unlocked)
    with pytest.raises(FolderError, match=r"locks no files .*run_dir="):
        run_shard(config, Shard(1, 2))


def test_words_of_a_shard():
    assert RunSettings(shard="1/4").part == Shard(1, 4)
    for text in ("2/2", "1", "-1/2", "a/b", "0/0"):
        with pytest.raises(ConfigError, match="shard must be i/n with 0 <= i < n"):
            _ = RunSettings(shard=text).part


# ---- ray.shards= ---------------------------------------------------------------------------------

FEW = [
    fakes.SEARCHPATH, "study=fake", UNTIMED, "decoders=[fake_ar]", "quality.images=8",
    "quality.batch=1", "quality.reseeds=0", "loop.seconds=0.1", "backend.threads=1",
]  # fmt: skip


def workers(folder: Path) -> Iterator[psutil.Process]:
    """Processes below this one that have opened a shard of the run."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(file.path.startswith(str(folder / "shards")) for file in process.open_files()):
                yield process


def node(alive: bool = True, **resources: float) -> dict[str, object]:
    """A machine as `ray.nodes` lists it."""
    return {"Alive": alive, "Resources": resources}


CLUSTERS = {
    "no card": ([node(CPU=2)], 2, 1, "2 CPUs and 0 GPUs"),
    "too few cores": ([node(CPU=2), node(CPU=3)], 4, 0, "2 CPUs and 0 GPUs; 3 CPUs and 0 GPUs"),
    "not together": ([node(CPU=8), node(CPU=1, GPU=4)], 2, 1, "1 CPUs and 4 GPUs"),
    "gone": ([node(alive=False, CPU=8, GPU=1)], 1, 0, "it has none"),
    "parts of a card": ([node(CPU=8, GPU=0.5)], 1, 0.75, "8 CPUs and 0.5 GPUs"),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_without_a_machine_for_a_task_is_refused(name):
    nodes, threads, gpus, has = CLUSTERS[name]
    with pytest.raises(
        ConfigError, match=rf"{threads} CPUs \(backend\.threads\) and {gpus}.*{has}"
    ):
        require_machine(nodes, threads, gpus)
    require_machine([*nodes, node(CPU=threads, GPU=gpus)], threads, gpus)


@pytest.mark.slow
def test_a_run_on_ray_gives_the_same_table_also_where_a_worker_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else they wait behind everything else
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
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
