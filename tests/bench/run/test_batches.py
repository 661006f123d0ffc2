"""`latency.batch`: the same prompts timed in batches too, and the table and plot by batch size."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.config.schema import variants
from bench.errors import Failure
from bench.run.contender import Contender
from bench.run.schedule import latency_jobs
from decoders.api import Sampling
from tests.bench import fakes

SLOW = "decoders=[{decoder: fake_ar, overrides: ['loop.seconds=0.03']}, "
FAST = "{decoder: fake_spec, overrides: ['loop.seconds=0.01']}, "
FAILS = "{decoder: fake_spec, name: bad, overrides: ['loop.fail_at=number 10']}]"
FEW = ("latency.prompts=10", "latency.batch=[1,2,11]", "quality.images=0", "latency.warmup_max=1")


def by_size(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {(line["decoder"], line["batch"]): line for line in load(folder).lines("batches")}


def test_places_are_refilled_where_a_call_has_more_images_than_rows(fake_study):
    """Rows say how many were decoded at once; a call is all of its images, the first warm-up one
    batch and one more, later ones a batch."""
    words = ["latency.requests=6", "latency.prompts=12", "latency.batch=[1,2,4]", *FEW[2:]]
    words.append(SLOW + FAST[:-2] + "]")
    config = fake_study(*words)
    assert config.prompts_needed == 12
    contenders = [Contender(v, Failure("")) for v in variants(config, Sampling())]
    jobs = latency_jobs(config, contenders)
    sizes = [(job.size, len(job.indices)) for job in jobs]
    assert sizes == [(1, 1)] * 24 + [(2, 6)] * 4 + [(4, 6)] * 4
    fakes.CALLS.clear()
    args = [fakes.SEARCHPATH, "study=fake", f"run_dir={config.run_dir}", *words]
    assert main(["run", *args]) == 0
    assert {size for name, _, size in fakes.CALLS if name == "ar"} == {1, 3, 5, 2, 4, 6}
    rows = pd.read_parquet(Path(config.run_dir) / "records.parquet")
    batched = rows[rows.protocol == "batched"]
    assert batched.groupby(["decoder", "batch", "block"]).size().tolist() == [6] * 8
    assert batched[batched.batch == 4].idle.unique() == pytest.approx([1 - 6 / 8])
    figures = by_size(Path(config.run_dir))
    for (name, size), seconds in {("fake_ar", 2): 0.09, ("fake_spec", 4): 0.02}.items():
        line = figures[name, size]
        assert (line["calls"], line["images"]) == (2, 6) and line["latency_s"] >= seconds
        assert line["images_s"] == pytest.approx(6 / line["latency_s"])
    gone = {"decoder": "fake_ar", "protocol": "batched", "batch": 4, "prompt_index": 3}
    assert fakes.forget(Path(config.run_dir), **gone)  # twice where it was timed again
    calls = len(fakes.CALLS)
    assert main(["run", *args]) == 0 and len(fakes.CALLS) == calls + 2, "warmed up, and the call"


def test_a_run_in_batches_reports_by_size(fake_study):
    config = fake_study(SLOW + FAST + FAILS, *FEW)
    words = [fakes.SEARCHPATH, "study=fake", SLOW + FAST + FAILS, *FEW]
    folder = Path(config.run_dir)
    assert main(["run", *words, f"run_dir={folder}", "report=true"]) == 1  # one decoder failed
    rows = pd.read_parquet(folder / "records.parquet")
    batched = rows[rows.protocol == "batched"]
    assert set(batched.batch) == {2, 11} and (batched.image == "").all()
    assert batched[batched.decoder != "bad"].seconds_total.notna().all()
    # A toy call takes the same time whatever its batch: 0.03 s and 0.01 s.
    figures = by_size(folder)
    assert {*figures} == {(d, b) for b in (1, 2, 11) for d in ("fake_ar", "fake_spec", "bad")}
    for size, count in {1: 10, 2: 5, 11: 1}.items():
        line = figures["fake_spec", size]
        assert line["speedup"] > 1.5 and line["calls"] == count
        assert line["latency_s"] >= 0.01
        assert line["images_s"] == pytest.approx(size / line["latency_s"])
        ends = [line[f"{name}_{end}"] for name in ("latency_s", "images_s") for end in ("lo", "hi")]
        assert {*map(math.isnan, ends)} == {count < 10}
        assert math.isnan(line["speedup_lo"]), "blocks of one moment"
    assert not figures["bad", 2]["error"] and "NaN logits" in figures["bad", 11]["error"]
    assert math.isnan(figures["bad", 11]["speedup"])
    summary = pd.read_csv(folder / "summary.csv", index_col="decoder")
    assert summary.n_latency.tolist() == [10, 10, 10]
    for name in ("table.txt", "table.md"):
        text = (folder / "report" / name).read_text()
        assert "speed-up at this batch" in text and "idle, %" in text and "failed" in text
    assert (folder / "report" / "plots" / "throughput.pdf").stat().st_size > 0
