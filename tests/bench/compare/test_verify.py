"""`python -m bench verify`: a part of a run made again; what was planted in the run is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.compare.publish import publish
from bench.config.compose import compose_study, recomposed
from bench.config.schedule import part_of
from bench.records import schema as records
from bench.records.run_json import write_record
from bench.run.finish import finish
from bench.run.runner import run_study
from tests.bench import fakes
from tests.bench.compare.made import save

WORDS = ("latency.prompts=6", "latency.repeats=2", "loop.seconds=0.02", "report=false")


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """A finished run; next to it, `again`, what every test makes of it again, once."""
    run = tmp_path_factory.mktemp("verify") / "run"
    config = compose_study([fakes.SEARCHPATH, "study=fake", f"run_dir={run}", *WORDS])
    finish(config, run_study(config))
    return run


@pytest.fixture
def run(first, tmp_path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


def said(run: Path, first: Path, capsys) -> tuple[int, dict[str, str]]:
    """The status, and what is said, by the first word of its line."""
    capsys.readouterr()
    status = main(["verify", str(run), f"out={first.parent / 'again'}"])
    lines = capsys.readouterr().out.splitlines()
    return status, {line.split()[0]: line for line in lines}


def plant(run: Path, column: str, change, **where) -> None:
    """Changes a column of the run's rows where others have these values."""
    rows = records.read(run / "records.parquet").to_pandas()
    chosen = (rows[[*where]] == list(where.values())).all(axis=1)
    assert chosen.any()
    rows.loc[chosen, column] = rows.loc[chosen, column].map(change)
    save(rows, run)


def test_a_run_is_confirmed_image_by_image(run, first, capsys):
    status, lines = said(run, first, capsys)
    assert status == 0
    # Two prompts timed twice, one batch of four; AR's reseed too.
    for name, images in (("fake_ar", 12), ("fake_spec", 8), ("greedy", 8)):
        assert lines[name].split()[1:4] == [str(images), "of", str(images)]
        assert lines[name].endswith(" confirmed")
    assert "commit" in lines["A:"] and str(run) in lines["A:"] and "again" in lines["B:"]


@pytest.mark.parametrize(
    ("column", "change", "where", "why"),
    [
        ("codes", lambda c: [*c[:-1], c[-1] ^ 1], {"protocol": "quality", "prompt_index": 3},
         "1 images differ"),
        ("mal", lambda mal: 1.5 * mal, {"protocol": "quality"}, "codes per forward differ"),
        ("seconds_total", lambda s: s / 2, {"protocol": "latency"}, "a smaller speed-up"),
    ],
)  # fmt: skip
def test_what_is_not_so_is_not_confirmed(column, change, where, why, run, first, capsys):
    plant(run, column, change, decoder="fake_spec", **where)
    status, lines = said(run, first, capsys)
    assert status == 1
    assert lines["fake_spec"].endswith(f"not confirmed ({why})")
    assert lines["fake_ar"].endswith(" confirmed")


def test_a_published_run_is_compared_by_its_pictures(run, first, capsys, tmp_path):
    write_record(run)
    publish(run, tmp_path / "table")
    status, lines = said(tmp_path / "table", first, capsys)
    assert status == 0 and "6 of 6" in lines["fake_spec"]  # the second round keeps no picture
    (tmp_path / "table" / "summary.csv").write_text("changed")
    assert said(tmp_path / "table", first, capsys)[0] == 2


def test_another_machine_is_said_and_confirms_nothing(run, first, capsys):
    study = json.loads((run / "study.json").read_text())
    study["machine"]["cpu"] = "another CPU"
    (run / "study.json").write_text(json.dumps(study))
    plant(run, "codes", lambda c: [0] * len(c), decoder="fake_spec")
    status, lines = said(run, first, capsys)
    assert status == 0
    assert lines["fake_spec"].endswith("cannot be compared (other machine)")
    assert "rounds products differently" in lines["cpu:"]


def test_code_that_has_changed_is_named(run, first, capsys):
    plant(run, "sources", lambda text: text.replace("fakes.py", "old.py"), decoder="fake_spec")
    _, lines = said(run, first, capsys)
    assert "old.py" in lines["fake_spec:"] and "changed since" in lines["fake_spec:"]


def test_a_study_comes_back_from_what_a_run_keeps_of_it(first):
    kept = json.loads((first / "study.json").read_text())["config"]
    assert recomposed(kept, "study.json").measured() == kept


@pytest.mark.parametrize(
    ("words", "prompts", "blocks", "images"),
    [
        (["latency.prompts=40", "latency.blocks=5", "quality.images=100", "quality.batch=25"],
         4, 1, 25),
        (["latency.prompts=0", "quality.images=6"], 0, 1, 4),
        (["latency.prompts=100", "latency.blocks=20", "quality.images=0"], 10, 2, 0),
    ],
)  # fmt: skip
def test_a_tenth_is_whole_batches(words, prompts, blocks, images, fake_study):
    found = part_of(fake_study(*words), 0.1)
    assert (found.latency.prompts, found.latency.blocks) == (prompts, blocks)
    assert (found.quality.images, found.quality.batch) == (images, fake_study(*words).quality.batch)


def test_the_run_itself_is_no_place_for_it(run, capsys):
    assert main(["verify", str(run), f"out={run}"]) == 2
    assert "the run itself" in capsys.readouterr().err
    (run / "study.json").write_text('{"config_hash": "", "config": {"seed": "x"}, "machine": {}}')
    assert main(["verify", str(run)]) == 2
