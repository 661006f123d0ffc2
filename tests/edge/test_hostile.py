"""No plug-in changes another decoder's rows, nor ends a run without a word."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.data.errors import FolderError
from bench.records.folder import open_folder
from bench.run.launch.launchers import lost_of
from bench.run.launch.merge import read
from bench.run.launch.task import LaunchConfig, Task
from bench.run.lineup import HarmError
from bench.run.runner import run_study
from tests.bench import fakes
from tests.edge.hostile import HOW

ROOT = Path(__file__).parents[2]
SHORT = [
    fakes.SEARCHPATH, "study=fake", "latency.prompts=2", "latency.warmup_max=1",
    "quality.images=0", "model._target_=tests.edge.hostile:load_model",
]  # fmt: skip


def hostile(how: str) -> str:
    words = f"['loop._target_=tests.edge.hostile:Loop', 'loop.label={how}']"
    return f"{{decoder: fake_spec, name: {how}, overrides: {words}}}"


def words(folder: Path, *hows: str) -> list[str]:
    every = ",".join(map(hostile, hows))
    last = "{decoder: fake_ar, name: last}"
    return [*SHORT, f"decoders=[fake_ar,{every},{last}]", f"run_dir={folder}"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, list[str]]:
    """One study of all of them, in this process; and its rows where nobody is hostile."""
    tmp = tmp_path_factory.mktemp("hostile")
    before = Path.cwd()
    rows = run_study(compose_study(words(tmp / "run", *HOW))).rows
    assert Path.cwd() == before
    honest = words(tmp / "honest", "swallows")
    codes = run_study(compose_study(honest)).rows
    return rows, [c.tolist() for c in codes[codes.decoder == "fake_ar"].codes]


@pytest.mark.parametrize("how", HOW)
def test_what_a_plug_in_does_is_in_its_own_rows(ran, how):
    mine, says = ran[0][ran[0].decoder == how], HOW[how][1]
    assert len(mine) == 2
    if says is None:
        assert (mine.status == "ok").all()
        return
    assert (mine.status == "failed").all()
    for error in mine.error:
        assert says in error and "hostile" in error


@pytest.mark.parametrize("name", ["fake_ar", "last"])
def test_the_others_have_the_codes_of_an_honest_run(ran, name):
    rows, codes = ran
    mine = rows[rows.decoder == name]
    assert (mine.status == "ok").all() and [c.tolist() for c in mine.codes] == codes


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("scales", "text.net.weight"), ("swaps", "text.net.weight"), ("buffer", "text.net.scale"),
        ("codebook", "the codebook"), ("hooks", "what runs in text.net"),
        ("forward", "what runs in text.net"), ("trains", "what runs in text.net"),
    ],
)  # fmt: skip
def test_a_plug_in_that_changes_the_model_ends_the_run(tmp_path, how, says):
    with pytest.raises(HarmError, match=r"hostile:Loop, .*\) has changed the model") as error:
        run_study(compose_study(words(tmp_path / "run", how)))
    assert says in str(error.value)
    assert not list(tmp_path.glob("run/rows/*/*.parquet")), "its warm-up came before every row"


@pytest.mark.skipif(sys.platform != "linux", reason="runs are watched on Linux")
@pytest.mark.parametrize(
    ("how", "status", "says"),
    [("exits", 1, "without a word"), ("killed", -9, "")],
)
def test_a_plug_in_that_ends_its_process_is_passed_over(tmp_path, how, status, says):
    asked = [*words(tmp_path / "run", how), "backend.threads=1"]
    command = [sys.executable, "-m", "bench", "run", *asked]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == status and says in found.stderr
    note = tmp_path / "run" / ".trying"
    note.write_text(note.read_text().replace('"tries": 1', '"tries": 3'))  # as after two more
    assert main(["run", *asked]) == 1
    rows = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert (rows[rows.decoder != how].status == "ok").all()
    mine = rows[rows.decoder == how]
    assert (mine.status == "failed").all() and len(mine) == 2
    assert mine.error.str.contains("3 processes died").all() and not note.exists()


def test_a_plug_ins_child_process_keeps_no_lock(tmp_path):
    heard, word = os.pipe()
    with open_folder(tmp_path / "run", {"a": 1}, "h", {}):
        child = os.fork()
        if not child:
            os.write(word, b"begun")
            time.sleep(60)
            os._exit(0)
        os.read(heard, 5)
    try:
        with open_folder(tmp_path / "run", {"a": 1}, "h", {}):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_merge_follows_no_link(tmp_path):
    run = tmp_path / "run"
    run_study(compose_study(words(run, "swallows")))
    assert read(run).rows
    picture = next(run.glob("images/**/*.png"))
    (tmp_path / "key").write_bytes(picture.read_bytes())
    picture.unlink()
    picture.symlink_to(tmp_path / "key")
    with pytest.raises(FolderError, match="is a link"):
        read(run)


def test_where_ray_itself_fails_the_shards_that_are_missing_are_named(monkeypatch, tmp_path):
    class RayError(Exception):
        pass

    def wait(*_: object, **__: object) -> None:
        raise RayError("the object store is gone\nmore of it")

    ray = SimpleNamespace(
        init=lambda **_: None, shutdown=lambda: None, wait=wait,
        exceptions=SimpleNamespace(RayError=RayError),
        remote=lambda **_: lambda work: SimpleNamespace(remote=lambda task: task.shard),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)
    tasks = [Task(("study=fake",), shard) for shard in ("0/2", "1/2")]
    lost = lost_of(tasks, LaunchConfig("ray", "ray"), tmp_path)
    assert [one.task.shard for one in lost] == ["0/2", "1/2"]
    assert all(one.why.endswith("the object store is gone") for one in lost)
