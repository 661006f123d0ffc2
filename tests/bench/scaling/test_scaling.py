"""Batch scaling: what is called in which order, what a row says, and what fails is a row."""

from __future__ import annotations

import csv
import math
from typing import Any

import pytest

from bench.__main__ import main
from bench.config.own_settings import own_settings, with_study
from bench.errors import ConfigError
from bench.scaling.cells import Cell, rows_of
from bench.scaling.command import ScalingSettings, in_turns, measure
from bench.scaling.write import save, table_of, terminal
from decoders.api import Sampling
from tests.bench import fakes

SLOW = "decoders=[{decoder: fake_ar, overrides: ['loop.seconds=0.03']}, "
FAST = "{decoder: fake_spec, overrides: ['loop.seconds=0.01']}, "
FAILS = "{decoder: fake_spec, name: bad, overrides: ['loop.fail_at=number 3']}]"


def shown(row):
    """The cells of a row."""
    return table_of([row]).rows[0].cells


def small(**settings: Any) -> ScalingSettings:
    return ScalingSettings(**{"batches": [1, 4], "repeats": 2, "images": 3} | settings)


def cell(decoder: str, batch: int, **more: Any) -> Cell:
    built: Any = None
    return Cell(decoder, batch, built, Sampling(), "ar", **more)


def test_small_batches_are_repeated_more_often():
    settings = ScalingSettings(batches=[1, 4, 64], repeats=3, images=8)
    assert [settings.calls(batch) for batch in (1, 4, 64)] == [8, 3, 3]


def test_decoders_take_turns_at_every_batch_size():
    cells = [cell(name, batch) for name in ("ar", "spec") for batch in (1, 4)]
    order = [(c.decoder, c.batch, turn) for c, turn in in_turns(cells, small())]
    assert order == [
        ("ar", 1, 0), ("spec", 1, 0), ("ar", 4, 0), ("spec", 4, 0),
        ("spec", 1, 1), ("ar", 1, 1), ("spec", 4, 1), ("ar", 4, 1),
        ("ar", 1, 2), ("spec", 1, 2),
    ]  # fmt: skip


def test_a_row_has_throughput_latency_and_the_paired_speed_up():
    ar = cell("ar", 4, seconds={0: 2.0, 1: 4.0}, forwards=[9, 9], mal=[1.0], peak_mb=5.0)
    spec = cell("spec", 4, seconds={0: 1.0, 1: 2.0}, forwards=[3, 5], mal=[2.0, 4.0], peak_mb=7.0)
    rows = {row.decoder: row for row in rows_of([ar, spec])}
    assert rows["spec"].latency.value == 1.5
    assert rows["spec"].images_s.value == pytest.approx(4 / 1.5)
    assert rows["spec"].images_s.lo == pytest.approx(4 / 2.0)  # the slowest call, not the fastest
    speedup = rows["spec"].speedup
    assert (speedup.value, speedup.lo, speedup.hi) == (2.0, 2.0, 2.0)
    assert (rows["spec"].forwards, rows["spec"].mal) == (4.0, 3.0)
    assert shown(rows["ar"])[4] == "1.00" and table_of([rows["spec"]]).rows[0].cells[4].startswith(
        "2.00 [2.00"
    )


def test_without_its_baseline_a_decoder_has_no_speed_up():
    broken = cell("ar", 4, error="OutOfMemoryError: too much")
    spec = cell("spec", 4, seconds={0: 1.0, 1: 2.0}, forwards=[3], mal=[2.0])
    rows = {row.decoder: row for row in rows_of([broken, spec])}
    assert math.isnan(rows["spec"].speedup.value) and shown(rows["spec"])[4] == "—"
    assert rows["ar"].error and shown(rows["ar"])[2] == "failed"


def test_a_study_is_measured_at_every_batch_and_failures_are_rows(fake_study, tmp_path):
    made = measure(fake_study(SLOW + FAST + FAILS), small())
    rows = {(row.decoder, row.batch): row for row in made.rows}
    assert [*rows] == [(d, b) for b in (1, 4) for d in ("fake_ar", "fake_spec", "bad")]
    # A toy call takes the same time whatever its batch: 0.03 s and 0.01 s.
    for batch in (1, 4):
        assert rows["fake_spec", batch].speedup.value > 1.5
        assert rows["fake_ar", batch].latency.value >= 0.03
    assert rows["fake_ar", 4].images_s.value > 2 * rows["fake_ar", 1].images_s.value
    assert not rows["bad", 1].error  # prompts 0, 1, 2; number 3 is in batches of four
    assert "NaN logits" in rows["bad", 4].error
    paths = save(made, tmp_path)
    assert [path.suffix for path in paths] == [".csv", ".md", ".svg", ".png"]
    assert all(path.stat().st_size > 0 for path in paths)
    lines = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert [line["status"] for line in lines] == ["ok"] * 5 + ["failed"]
    assert lines[0]["cpu"] and lines[0]["threads"] == "1" and float(lines[0]["peak_memory_mb"]) > 0
    assert "NaN logits" in paths[1].read_text() and "NaN logits" in terminal(made)


def test_every_call_of_a_batch_has_its_own_prompts(fake_study):
    measure(fake_study("decoders=[fake_ar]"), small(warmups=0))
    assert fakes.CALLS == [
        ("ar", "scene number 0", 1), ("ar", "scene number 0", 4),
        ("ar", "scene number 1", 1), ("ar", "scene number 0", 4),
        ("ar", "scene number 2", 1),
    ]  # fmt: skip


def test_the_command_prints_the_table_and_needs_one_cell_that_runs(tmp_path, capsys):
    words = [
        fakes.SEARCHPATH, "study=fake", f"run_dir={tmp_path}", "scaling.batches=[1,2]",
        "scaling.repeats=2", "scaling.images=2",
    ]  # fmt: skip
    assert main(["scaling", *words, "decoders=[fake_ar,fake_spec]"]) == 0
    assert "speed-up at this batch" in capsys.readouterr().out
    assert (tmp_path / "scaling.svg").exists()
    broken = "decoders=[{decoder: fake_ar, overrides: ['loop.broken=build']}]"
    assert main(["scaling", *words, broken]) == 1
    assert "cannot be built" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("scaling.batchs=[1]", "batches"),
        ("scaling.batches=[]", "empty"),
        ("scaling.batches=[0]", "at least 1, found 0"),
        ("scaling.batches=[1.5]", "must be an integer"),
        ("scaling.batches=[4,4]", "twice"),
        ("scaling.repeats=1", "at least 2"),
        ("scaling.images=no", "an integer"),
    ],
)
def test_bad_settings_are_refused_with_what_is_known(word, said):
    with pytest.raises(ConfigError, match=said):
        own_settings(ScalingSettings, "scaling", [word])


def test_the_default_study_is_only_a_default():
    assert with_study(["seed=1"], "scaling") == ["study=scaling", "seed=1"]
    assert with_study(["study=main"], "scaling") == ["study=main"]
