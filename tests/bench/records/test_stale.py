"""Rows of other code, weights, prompts, places or machines: never shown as those of the run."""

import random
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from bench.records import rows as records
from bench.records.sources import code_of
from bench.run.finish import gather
from bench.run.runner import run_study
from tests.bench import fakes

PLUGIN = """
from tests.bench.fakes import FakeLoop
from my_depth import DEPTH

class Mine(FakeLoop):
    def __init__(self, model, *, sampling, proposer, verifier, step=3, seconds=0.0,
                 fail_at="", kill_at="", flag="", broken="", label=""):
        super().__init__(model, sampling=sampling, proposer=proposer, verifier=verifier,
                         step=DEPTH, broken=BROKEN, label="mine")
"""
MINE = "{decoder: fake_spec, name: mine, overrides: ['loop._target_=my_loop.Mine']}"
WORDS = (
    f"decoders=[fake_ar,{MINE}]",
    "quality.images=2", "latency.prompts=2", "quality.reseeds=0",
)  # fmt: skip


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`edit(depth=.., broken=..)` writes the plug-in, for a process that has not imported it."""
    monkeypatch.syspath_prepend(str(tmp_path / "plugin"))
    (tmp_path / "plugin").mkdir()

    def write(depth: int = 3, broken: str = "", comment: str = "") -> None:
        (tmp_path / "plugin" / "my_depth.py").write_text(f"DEPTH = {depth}  # {comment}\n")
        (tmp_path / "plugin" / "my_loop.py").write_text(f"BROKEN = {broken!r}\n{PLUGIN}")
        for name in ("my_loop", "my_depth"):
            sys.modules.pop(name, None)
        code_of.cache_clear()
        fakes.CALLS.clear()

    yield write
    for name in ("my_loop", "my_depth"):
        sys.modules.pop(name, None)


def decoded() -> set[str]:
    return {label for label, *_ in fakes.CALLS}


def mal(rows: pd.DataFrame) -> float:
    return float(rows[rows.decoder == "mine"].mal.mean())


def test_rows_of_an_edited_plug_in_are_decoded_again(fake_study, edit, caplog):
    edit(depth=3)
    first = run_study(fake_study(*WORDS)).rows
    edit(depth=3, comment="only words")
    assert mal(run_study(fake_study(*WORDS)).rows) == mal(first) and not fakes.CALLS
    edit(depth=2)
    second = run_study(fake_study(*WORDS)).rows
    assert mal(second) < mal(first) and decoded() == {"mine"}, "the baseline is as it was"
    assert "mine: 4 recorded rows do not count, my_depth.py changed" in caplog.text
    rest = [*Path(fake_study(*WORDS).run_dir).glob("rows/*/*.stale")]
    assert not rest, "nothing of the old rows stays"


def test_an_edit_taken_back_brings_the_rows_back(fake_study, edit):
    edit(depth=3)
    config = fake_study(*WORDS)
    first = run_study(config).rows
    edit(depth=2)
    words = [*WORDS, "latency.prompts=2"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tests.bench.fakes.prompts_of", interrupted)
        run_study(fake_study(*words))
    assert not (Path(config.run_dir) / "records.parquet").exists(), "no table of the old code"
    found = gather(config)
    assert found is not None and "none yet of mine" in found.title
    edit(depth=3)
    pd.testing.assert_frame_equal(run_study(config).rows, first)
    assert not fakes.CALLS


def interrupted(_: object) -> list[str]:
    signal.raise_signal(signal.SIGINT)
    return []


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
    edit(broken="")
    assert (run_study(fake_study(*WORDS)).rows.status == "ok").all() and decoded() == {"mine"}


def test_weights_that_a_setting_names_and_prompts_belong_to_a_row(fake_study, tmp_path, caplog):
    weights = tmp_path / "mine.safetensors"
    weights.write_bytes(b"one")
    words = [f"decoders=[fake_ar,{{decoder: fake_spec, overrides: ['loop.flag={weights}']}}]"]
    words += ["quality.images=0", "latency.prompts=2"]
    run_study(fake_study(*words))
    weights.write_bytes(b"two")
    fakes.CALLS.clear()
    run_study(fake_study(*words))
    assert decoded() == {"spec"} and "weights changed" in caplog.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakes, "load_prompts", other_prompts)
        fakes.CALLS.clear()
        run_study(fake_study(*words))
    assert decoded() == {"ar", "spec"} and "the prompts changed" in caplog.text


def other_prompts(count: int, word: str = "scene") -> list[fakes.Prompt]:
    return [fakes.Prompt(f"p{i}", f"{word} edited {i}", "any") for i in range(count)]


FEW = "decoders=[fake_ar,fake_spec]", "quality.images=2", "latency.prompts=2"


@pytest.fixture
def finished(fake_run):
    config, result = fake_run(*FEW)
    return config, result.rows


def again(config) -> tuple[pd.DataFrame, list[tuple[str, str, int]]]:
    fakes.CALLS.clear()
    return run_study(config).rows, [call for call in fakes.CALLS]


def row_file(config, cell: str, stem: str) -> Path:
    return next(Path(config.run_dir).glob(f"rows/{cell}-*/{stem}.parquet"))


def test_a_row_copied_over_another_is_decoded_again(finished, caplog):
    config, rows = finished
    row_file(config, "fake_spec", "quality-0-00000").write_bytes(
        row_file(config, "fake_ar", "quality-0-00001").read_bytes()
    )
    found = gather(config)
    assert found is not None and "9 of 10 images" in found.title, "it is no part of a table"
    new, calls = again(config)
    assert {label for label, *_ in calls} == {"spec"}
    says = "is another row (decoder fake_ar, expected fake_spec, prompt_index 1, expected 0)"
    assert says in caplog.text
    assert [c.tolist() for c in new.codes] == [c.tolist() for c in rows.codes]


def test_rows_of_another_machine_do_not_mix(finished, caplog):
    config, _ = finished
    path = row_file(config, "fake_spec", "latency-0-00001")
    row = records.read(path).to_pylist()[0] | {"cpu": "a faster one", "seconds_total": 1e-9}
    records.write(path, records.to_table(row))
    for name in ("summary.csv", "records.parquet"):
        (Path(config.run_dir) / name).unlink(missing_ok=True)
    found = gather(config)
    assert found is not None
    assert "a faster one" not in set(pd.read_parquet(found.folder / "records.parquet").cpu)
    new, calls = again(config)
    assert calls and new.cpu.nunique() == 1 and (new.seconds_total.dropna() > 1e-6).all()
    assert "cpu was a faster one and is" in caplog.text


@pytest.mark.parametrize("kind", ["truncated", "another"])
def test_a_truncated_or_foreign_picture_is_made_again(finished, kind):
    config, _ = finished
    picture = next(Path(config.run_dir).glob("images/fake_spec-*/*/quality-0-00001.png"))
    whole = picture.read_bytes()
    if kind == "truncated":
        picture.write_bytes(whole[: len(whole) // 2])
    else:
        Image.new("RGB", (8, 8)).save(picture)
    again(config)
    assert picture.read_bytes() == whole


def test_no_damage_of_a_row_file_passes(finished, tmp_path):
    config, _ = finished
    path = row_file(config, "fake_spec", "quality-0-00000")
    whole, expected, chance = path.read_bytes(), records.read(path), random.Random(0)
    other = tmp_path / "damaged.parquet"
    for _ in range(150):
        at = chance.randrange(len(whole))
        filler = chance.choice([bytes(64), b"\xff" * 64, chance.randbytes(64)])
        content = (whole[:at] + filler + whole[at + 64 :])[: len(whole)]
        other.write_bytes(content)
        assert records.read(other) is None or records.read(other).equals(expected)
    for end in range(0, len(whole), 97):
        other.write_bytes(whole[:end])
        assert records.read(other) is None
    path.write_bytes(whole[:600] + bytes(64) + whole[664:])
    new, calls = again(config)
    assert calls and (new.status == "ok").all() and records.read(path) is not None
