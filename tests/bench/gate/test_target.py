"""A run's own target is examined before anything is timed."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from bench.__main__ import main
from bench.gate.target import TargetError, examine
from tests.bench.fakes import SEARCHPATH
from tests.bench.gate import targets
from tests.bench.gate.targets import gpt_model
from tests.exact.table import table_model

PROMPTS = "a red cat", "two blue dogs on a hill"
WRONG = {
    "OnePlaceOff": "positions", "PlacesOfSlots": "positions", "OwnMask": "mask", "BoolMask": "mask",
    "PlacesOfFirstRow": "rows", "MixedRows": "rows", "StaleCache": "cache", "BarredApart": "mass",
    "PathOfFirstRow": "cache", "SeesSiblings": "mask", "SeesRows": "rows",
    "SeesCousins": "mask",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_target_is_refused_with_what_differs_and_where_to_look(name, dtype):
    kind = getattr(targets, name)
    message = f"target {kind.__name__} fails .* {WRONG[name]}: .*`Target"
    with pytest.raises(TargetError, match=message):
        examine(gpt_model(kind, dtype), lambda: PROMPTS, 2.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forwards_are_as_wide_as_those_of_the_decoders(dtype):
    for width in (0, 32):
        examine(gpt_model(targets.LeakyWide, dtype), lambda: PROMPTS, 2.0, width)
    with pytest.raises(TargetError, match=r"Gpt fails .* (mask|positions): "):
        examine(gpt_model(targets.LeakyWide, dtype), lambda: PROMPTS, 2.0, 40)


def test_a_whole_row_is_looked_at_however_long_it_is(monkeypatch):
    monkeypatch.setattr("bench.gate.target.CODES", targets.SIDE - 1)
    with pytest.raises(TargetError, match=r"Gpt fails .* positions"):
        examine(gpt_model(targets.OneRow), lambda: PROMPTS, 2.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_a_right_target_passes(dtype, cfg):
    for seed in range(3):
        examine(gpt_model(dtype=dtype, seed=seed), lambda: PROMPTS, cfg)


def test_other_right_targets_pass():
    examine(table_model(vocab=5, length=9), lambda: PROMPTS[:1], 1.0)
    barred = gpt_model()
    barred.target.barred = torch.arange(targets.VOCAB) == torch.arange(targets.SIDE)[:, None]
    examine(barred, lambda: PROMPTS, 2.0)


def test_a_target_that_raises_is_refused_with_its_error():
    model = gpt_model()
    model.target.prefill = lambda *_: torch.zeros(1)
    with pytest.raises(TargetError, match=r"Gpt could not be examined.*IndexError"):
        examine(model, lambda: PROMPTS, 2.0)


@pytest.mark.parametrize("command", ["run", "check", "run dry=true"])
def test_the_study_stops_before_its_first_image(command, tmp_path, capsys):
    words = ["study=fake", "model=gpt_wrong", "decoders=[ar,sjd]", f"run_dir={tmp_path / 'run'}"]
    assert main([*command.split(), SEARCHPATH, *words]) == 2
    assert "Gpt fails a check of this run's own model, positions" in capsys.readouterr().err
    assert not [*Path(tmp_path).glob("run/rows/*")]


def test_a_study_of_a_right_target_has_a_floor(tmp_path, monkeypatch):
    rates = {"step_bytes_per_s": 9e15, "operations_per_s": 9e15}
    monkeypatch.setattr("bench.run.session.measure_rates", lambda *_: rates)
    words = ["study=fake", "model=gpt", "decoders=[ar,sjd]", f"run_dir={tmp_path / 'run'}"]
    assert main(["run", SEARCHPATH, *words]) == 0
    table = pd.read_csv(tmp_path / "run" / "roofline.csv").set_index("decoder")
    assert (table.forward_floor_ms > 0).all() and table.note.isna().all()
