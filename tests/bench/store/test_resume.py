"""What a resumed run goes on with: rows of the same code and weights, and no others."""

import dataclasses
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from bench.run.study import read_unfinished, run_study
from tests.bench import fakes

PLUGIN = """
from tests.bench.fakes import FakeLoop

class Mine(FakeLoop):
    def __init__(self, model, *, sampling, proposer, verifier, step=3, seconds=0.0,
                 fail_at="", kill_at="", fault_at="", fault="", flag="", broken="", label=""):
        super().__init__(model, sampling=sampling, proposer=proposer, verifier=verifier,
                         step={step}, broken="{broken}", label="mine")
"""
MINE = "{decoder: fake_spec, name: mine, overrides: ['loop._target_=my_loop.Mine']}"
WORDS = (
    f"decoders=[fake_ar,{MINE}]",
    "quality.images=2", "latency.prompts=2", "quality.reseeds=0",
)  # fmt: skip
FEW = "decoders=[fake_ar,fake_spec]", "quality.images=2", "latency.prompts=2"


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`edit(step=.., broken=..)` writes the plug-in, for a process that has not imported it."""
    monkeypatch.syspath_prepend(str(tmp_path / "plugin"))
    (tmp_path / "plugin").mkdir()

    def write(step: int = 3, broken: str = "") -> None:
        (tmp_path / "plugin" / "my_loop.py").write_text(PLUGIN.format(step=step, broken=broken))
        sys.modules.pop("my_loop", None)
        fakes.CALLS.clear()

    yield write
    sys.modules.pop("my_loop", None)


def decoded() -> set[str]:
    return {label for label, *_ in fakes.CALLS}


def mal(rows: pd.DataFrame) -> float:
    return float(rows[rows.decoder == "mine"].mal.mean())


def test_an_edited_plug_in_starts_again_and_comes_back_with_its_code(fake_study, edit, caplog):
    edit(step=3)
    config = fake_study(*WORDS)
    first = run_study(config).rows
    edit(step=2)
    second = run_study(fake_study(*WORDS)).rows
    assert mal(second) < mal(first) and decoded() == {"mine"}, "the baseline is as it was"
    assert "mine: 4 rows are of other code or weights (commit " in caplog.text
    edit(step=3)
    caplog.clear()
    pd.testing.assert_frame_equal(run_study(fake_study(*WORDS)).rows, first)
    assert not fakes.CALLS and "mine" not in caplog.text


def test_a_mended_plug_in_is_tried_again_and_an_old_error_names_the_remedy(
    fake_study, edit, caplog
):
    edit(broken="codes")
    assert (run_study(fake_study(*WORDS)).rows.status == "failed").sum() == 4
    caplog.clear()
    fakes.CALLS.clear()
    assert (run_study(fake_study(*WORDS)).rows.status == "failed").sum() == 4
    assert "mine: 4 images failed in an earlier run" in caplog.text
    assert "retry_failed=true" in caplog.text and not fakes.CALLS
    edit()
    assert (run_study(fake_study(*WORDS)).rows.status == "ok").all() and decoded() == {"mine"}


def test_other_weights_or_prompts_start_again(fake_study, tmp_path, caplog, monkeypatch):
    weights = tmp_path / "mine.safetensors"
    weights.write_bytes(b"one")
    words = [f"decoders=[fake_ar,{{decoder: fake_spec, overrides: ['loop.flag={weights}']}}]"]
    words += ["quality.images=0", "latency.prompts=2"]
    run_study(fake_study(*words))
    weights.write_bytes(b"two")
    fakes.CALLS.clear()
    run_study(fake_study(*words))
    assert decoded() == {"spec"} and "other code or weights" in caplog.text
    monkeypatch.setattr(fakes, "load_prompts", other_prompts)
    fakes.CALLS.clear()
    run_study(fake_study(*words))
    assert decoded() == {"ar", "spec"} and "of another prompt" in caplog.text


def other_prompts(count: int, word: str = "scene") -> list[fakes.Prompt]:
    return [fakes.Prompt(f"p{i}", f"{word} edited {i}", "any") for i in range(count)]


def test_half_a_row_is_dropped_and_a_damaged_one_decoded_again(fake_study, fake_run, caplog):
    config, result = fake_run(*FEW)
    path = Path(config.run_dir) / "rows" / "fake_spec.quality.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[: len(second) // 2])
    found = read_unfinished(Path(config.run_dir))
    assert found is not None and "9 of 10 images" in found.study
    fakes.CALLS.clear()
    rows = run_study(config).rows
    assert fakes.CALLS == [("spec", "scene number 0", 2)]
    assert len(path.read_bytes().splitlines()) == 2, "the whole one stands once"
    assert [c.tolist() for c in rows.codes] == [c.tolist() for c in result.rows.codes]
    assert "damaged" not in caplog.text
    whole = path.read_bytes()
    for part, damaged in ((b'"codes":[', b'"codes":[x,'), (b'"status":', b'"status":"","status":')):
        path.write_bytes(whole.replace(part, damaged, 1))  # a key twice is damage too
        caplog.clear()
        assert len(run_study(config).rows) == 10 and "1 damaged rows" in caplog.text


def test_a_lost_picture_is_made_again(fake_run):
    config, _ = fake_run(*FEW)
    picture = Path(config.run_dir) / "images/fake_spec/quality/quality-0-00001.png"
    whole = picture.read_bytes()
    picture.unlink()
    run_study(config)
    assert picture.read_bytes() == whole


FAST = (datetime.now(UTC) + timedelta(minutes=5)).isoformat(timespec="seconds")


@pytest.mark.parametrize("other", [False, True], ids=["one file", "the file of a shard"])
def test_of_machines_whose_clocks_differ_the_row_that_was_written_last_counts(
    fake_study, fake_run, other
):
    """A machine whose clock is fast had recorded a failure."""
    config, _ = fake_run(*FEW)
    path = Path(config.run_dir) / "rows" / "fake_spec.quality.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    failed = rows[0] | {"status": "failed", "error": "full", "started_at": FAST}
    path.write_text("".join(json.dumps(row) + "\n" for row in [failed, *rows[1:]]))
    if other:
        path.rename(path.with_name("fake_spec.quality.0-of-1.jsonl"))
    assert (run_study(config).rows.status == "failed").sum() == 1
    again = dataclasses.replace(config, retry_failed=True)
    assert (run_study(again).rows.status == "ok").all()
    fakes.CALLS.clear()
    assert (run_study(config).rows.status == "ok").all() and not fakes.CALLS
