"""A study as a user runs it: protocols, resume, failures. On toy decoders."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from bench.__main__ import main
from bench.data.errors import ConfigError, DeviceLostError
from bench.run.finish import finish
from bench.run.runner import run_study
from decoders.api import DecoderError
from tests.bench import fakes

ROOT = Path(__file__).parents[3]
# What differs between two runs of the same study: when, how fast, how much memory, which tree.
VOLATILE = ["started_at", "peak_memory_mb", "config_hash", "git_commit", "git_dirty"]
TIMES = [f"latency_{kind}_s" for kind in ("mean", "p50", "p95")]
TIMES += [f"speedup{end}" for end in ("", "_lo", "_hi", "_least", "_greatest")]
FAILING = "{decoder: fake_spec, name: bad, overrides: ['loop.fail_at=number 2']}"


def stable(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns that a repeated run must reproduce, in a fixed order of rows."""
    times = [c for c in rows.columns if c.startswith(("seconds_", "cpu_"))]
    return rows.drop(columns=[*times, *VOLATILE]).reset_index(drop=True)


def test_every_image_is_a_row_with_its_picture(fake_run):
    _, result = fake_run()
    rows = result.rows
    counts = rows.groupby(["decoder", "protocol"]).size().to_dict()
    assert counts == {
        ("fake_ar", "latency"): 4, ("fake_ar", "quality"): 6, ("fake_ar", "reseed"): 6,
        ("fake_spec", "latency"): 4, ("fake_spec", "quality"): 6,
        ("greedy", "latency"): 4, ("greedy", "quality"): 6,
    }  # fmt: skip
    assert (rows.status == "ok").all()
    assert all((result.path / image).is_file() for image in rows.image)
    assert rows[rows.protocol != "latency"].seconds_total.isna().all()
    assert (rows[rows.protocol == "latency"].seconds_total > 0).all()
    again, quality = (
        rows[(rows.decoder == "fake_ar") & (rows.protocol == p)] for p in ("reseed", "quality")
    )
    assert set(again.seed) == {1} and set(quality.seed) == {0}
    assert again.codes.iloc[0].tolist() != quality.codes.iloc[0].tolist()


def test_an_image_does_not_depend_on_protocol_or_batch(fake_study, fake_run, tmp_path):
    rows = fake_run()[1].rows
    other = run_study(fake_study("quality.batch=3", f"run_dir={tmp_path / 'b'}")).rows
    key = ["decoder", "prompt_index"]
    for frame, protocol in ((rows, "latency"), (other, "quality")):
        mine = frame[(frame.protocol == protocol) & (frame.prompt_index < 4)].sort_values(key)
        reference = rows[(rows.protocol == "quality") & (rows.prompt_index < 4)].sort_values(key)
        assert [c.tolist() for c in mine.codes] == [c.tolist() for c in reference.codes]


def test_blocks_of_timed_prompts_are_spread_over_the_run(fake_study):
    words = ("latency.blocks=2", "quality.reseeds=0", "decoders=[fake_ar,fake_spec]")
    rows = run_study(fake_study(*words)).rows
    prompts, sizes = zip(*[(p, size) for _, p, size in fakes.CALLS], strict=True)
    second = sizes.index(1, sizes.index(4))  # quality batches of 4 (and the rest, 2) between blocks
    assert {p for p, size in zip(prompts[:second], sizes[:second], strict=True) if size == 1} == {
        "scene number 0", "scene number 1"
    }  # fmt: skip
    # The second block: each decoder once to warm up, then its two prompts; the other batches last.
    assert prompts[second : second + 6] == ("scene number 2",) * 4 + ("scene number 3",) * 2
    assert sizes[second:] == (1,) * 6 + (4, 2)
    timed = rows[rows.protocol == "latency"]
    assert timed.groupby("prompt_index").block.unique().explode().tolist() == [0, 0, 1, 1]
    assert set(rows[rows.protocol == "quality"].block) == {0}


def test_each_prompt_is_timed_once_with_a_picture(fake_study):
    words = ("latency.blocks=2", "quality.images=0", "decoders=[fake_ar]")
    rows = run_study(fake_study(*words)).rows
    assert sorted(zip(rows.prompt_index, rows.block, strict=True)) == [
        (p, p // 2) for p in range(4)
    ]
    timed = [p for i, (_, p, _) in enumerate(fakes.CALLS) if i not in (0, 1, 4)]
    assert timed == [f"scene number {p}" for p in range(4)], "warm-ups left out"
    assert all(rows.image)
    fakes.CALLS.clear()
    assert_frame_equal(run_study(fake_study(*words)).rows, rows)
    assert fakes.CALLS == [], "a finished study decodes nothing again"


@pytest.mark.parametrize("where", ["number 1", "number 5"])
def test_an_interrupted_study_resumes_to_the_same_table(fake_study, tmp_path, where):
    flag = tmp_path / "interrupt"
    flag.touch()
    kill = [
        f"decoders=[fake_ar,{{decoder: fake_spec, overrides: ['loop.kill_at={where}']}}]",
        f"loop.flag={flag}",
    ]
    config = fake_study(*kill)
    with pytest.raises(KeyboardInterrupt):
        run_study(config)
    recorded = len(fakes.recorded(Path(config.run_dir)))
    assert recorded > 0 and not (Path(config.run_dir) / "records.parquet").exists()
    flag.unlink()
    fakes.CALLS.clear()
    resumed = run_study(config)
    whole = run_study(fake_study(*kill, f"run_dir={tmp_path / 'whole'}"))
    assert_frame_equal(stable(resumed.rows), stable(whole.rows))
    first, second = (
        finish(c, r).drop(columns=[*TIMES, "peak_memory_mb"])
        for c, r in ((config, resumed), (config, whole))
    )
    assert_frame_equal(first, second)


class Killed(BaseException):
    """As SIGKILL: nothing handles it."""


@pytest.mark.parametrize("at", [2, 6, 9, 13, 17, 18, 20, 24])
def test_a_kill_while_a_file_is_written_gives_the_table_of_a_run_without_kills(
    fake_study, fake_run, monkeypatch, tmp_path, at
):
    """At study.json, a record (of which half is left), captions, the merge, a table."""
    words = "decoders=[fake_ar,fake_spec]", "latency.prompts=3"
    _, whole = fake_run(*words)
    config, sync, count = fake_study(*words, f"run_dir={tmp_path / 'killed'}"), os.fsync, [0]

    def kill(file: int) -> None:
        count[0] += 1
        if count[0] == at:
            os.ftruncate(file, max(os.fstat(file).st_size - 10, 0))
            raise Killed
        sync(file)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(os, "fsync", kill)
        finish(config, run_study(config))
    resumed = run_study(config)
    assert_frame_equal(stable(resumed.rows), stable(whole.rows))
    left = [*TIMES, "peak_memory_mb"]
    first, second = (finish(config, result).drop(columns=left) for result in (resumed, whole))
    assert_frame_equal(first, second)


def test_a_killed_process_loses_at_most_the_call_in_flight(tmp_path):
    words = [
        fakes.SEARCHPATH, "study=fake", f"run_dir={tmp_path / 'run'}", "loop.seconds=0.1",
        "decoders=[fake_ar,fake_spec]", "quality.images=4", "quality.batch=2",
    ]  # fmt: skip
    command = [sys.executable, "-m", "bench", "run", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    deadline = time.monotonic() + 60
    while len(fakes.recorded(tmp_path / "run")) < 3:
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    survivors = fakes.recorded(tmp_path / "run")
    assert 3 <= len(survivors) < 16
    assert main(["run", *words]) == 0
    assert all(str(r) in [*map(str, fakes.recorded(tmp_path / "run"))] for r in survivors)
    rows = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert len(rows) == 2 * (4 + 4) + 4 and (rows.status == "ok").all()
    assert not list(tmp_path.rglob(".tmp-*"))
    summary = pd.read_csv(tmp_path / "run" / "summary.csv")
    assert summary.n_latency.tolist() == [4, 0, 4]


def test_a_failing_image_is_a_failed_row_and_the_others_go_on(fake_study):
    config = fake_study(f"decoders=[fake_ar,{FAILING}]")
    result = run_study(config)
    rows = result.rows
    failed = rows[rows.status == "failed"]
    assert (failed.decoder == "bad").all() and failed.error.str.startswith(
        "NumericalError: NaN logits at step 3"
    ).all()
    assert sorted(zip(failed.protocol, failed.prompt_index, strict=True)) == [
        ("latency", 2), ("quality", 0), ("quality", 1), ("quality", 2), ("quality", 3),
    ]  # fmt: skip
    assert len(rows[rows.decoder == "fake_ar"]) == 16
    summary = finish(config, result).set_index("decoder")
    assert summary.loc["bad", "status"].startswith("5 of 10 images failed: NumericalError")
    assert summary.loc["bad", "n_latency"] == 3 and summary.loc["bad", "n_quality"] == 2
    assert summary.loc["fake_ar", "status"] == "ok"


@pytest.mark.parametrize(
    ("where", "before"),
    [("number 0", {}), ("number 2", {"bad": 2, "fake_ar": 3, "fake_spec": 3})],
    ids=["warming up", "third image"],
)
def test_a_decoder_that_stops_the_gpu_ends_the_run_and_a_resume_goes_on(fake_study, where, before):
    bad = f"{{decoder: fake_spec, name: bad, overrides: ['loop.fault_at={where}']}}"
    config = fake_study(f"decoders=[fake_ar,{bad},fake_spec]", "latency.blocks=1")
    with pytest.raises(DeviceLostError, match=r"bad has stopped the GPU \(AcceleratorError: CUDA"):
        run_study(config)
    recorded = Counter(r["decoder"] for r in fakes.recorded(Path(config.run_dir)))
    assert recorded == before | {"bad": 10}, "nothing of others after that"
    rows = run_study(config).rows
    failed = rows[rows.status == "failed"]
    assert set(failed.decoder) == {"bad"} and len(failed) == 10 - before.get("bad", 0)
    assert failed.error.str.contains("an illegal memory access").all()
    assert len(rows) == 16 + 10 + 10


def test_full_memory_of_a_gpu_is_the_failure_of_one_call(fake_study):
    full = "overrides: ['loop.fault_at=number 2', 'loop.fault=out of memory']"
    bad = f"{{decoder: fake_spec, name: bad, {full}}}"
    rows = run_study(fake_study(f"decoders=[fake_ar,{bad}]")).rows
    assert (rows.status == "failed").sum() == 5


def test_a_decoder_that_cannot_be_built_fails_alone(fake_study):
    broken = "{decoder: fake_spec, name: broken, overrides: ['loop.broken=build']}"
    config = fake_study(f"decoders=[fake_ar,{broken}]")
    result = run_study(config)
    rows = result.rows
    mine = rows[rows.decoder == "broken"]
    assert len(mine) == 10 and (mine.status == "failed").all()
    assert mine.error.str.contains("this plug-in cannot be built").all()
    summary = finish(config, result).set_index("decoder")
    assert summary.loc["broken", "status"].startswith("failed: ")
    assert pd.isna(summary.loc["broken", "speedup"])


def test_codes_outside_the_codebook_are_a_failure(fake_study):
    rows = run_study(fake_study("decoders=[fake_ar]", "loop.broken=codes")).rows
    assert rows.error.str.contains(r"codes must lie in 0\.\.31").all()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["acceptance.k=33"], "k must be at most 32"),
        (["prompts.word='été'"], "cannot read prompt p0: not English"),
        (["loop._target_=tests.bench.fakes:FakeLop"], "FakeLop"),
    ],
)
def test_impossible_settings_stop_before_anything_is_decoded(fake_study, words, expected):
    with pytest.raises((DecoderError, ConfigError)) as error:
        run_study(fake_study(*words))
    assert expected in str(error.value)
    assert fakes.CALLS == []
