"""`python -m bench verify`: a part of a run made again; what was planted in the run is found."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.compare.chance import read_sides
from bench.compare.publish import publish
from bench.compare.verify import compared
from bench.config.compose import compose_study, recomposed
from bench.config.schedule import part_of
from bench.records import rows as records
from bench.records.run_json import write_record
from bench.run.finish import finish
from bench.run.runner import run_study
from tests.bench import fakes
from tests.bench.compare.made import save
from tests.bench.report.synthetic import DECODERS, write_run

WORDS = ("latency.prompts=0", "quality.images=10", "quality.batch=4", "report=false")
LINEUP = tuple(d for d in DECODERS if d.name in ("ar", "eagle2", "lantern"))


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """A finished run; next to it, `again`, what the first test makes of it, and the others find."""
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
    for name, images in (("fake_ar", 8), ("fake_spec", 4), ("greedy", 4)):  # AR's reseed too
        assert lines[name].split()[1:4] == [str(images), "of", str(images)]
        assert lines[name].endswith(" confirmed")
    assert "commit" in lines["A:"] and str(run) in lines["A:"] and "again" in lines["B:"]
    assert not (first.parent / "again" / "exactness.csv").exists()


@pytest.mark.parametrize(
    ("column", "change", "where", "why"),
    [
        ("codes", lambda codes: [*codes[:-1], codes[-1] ^ 1], {"prompt_index": 3},
         "1 of 4 images differ"),
        ("mal", lambda mal: 1.5 * mal, {"protocol": "quality"}, "codes per forward differ"),
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
    assert status == 0 and "4 of 4" in lines["fake_spec"]
    plant(tmp_path / "table", "image_hash", lambda _: "another", decoder="fake_spec")
    assert said(tmp_path / "table", first, capsys)[0] == 2  # not as its run.json says
    (tmp_path / "table" / "run.json").unlink()
    status, lines = said(tmp_path / "table", first, capsys)
    assert status == 1 and "4 of 4 images differ" in lines["fake_spec"]


def test_another_machine_is_said_and_confirms_nothing(run, first, capsys):
    study = json.loads((run / "study.json").read_text())
    study["machine"]["cpu"] = "another CPU"
    (run / "study.json").write_text(json.dumps(study))
    plant(run, "codes", lambda codes: [0] * len(codes), decoder="fake_spec")
    status, lines = said(run, first, capsys)
    assert status == 0 and "0 of 4" in lines["fake_spec"]
    assert lines["fake_spec"].endswith("cannot be compared (other machine)")
    assert "rounds products differently" in lines["cpu:"]


def test_code_that_has_changed_is_named(run, first, capsys):
    plant(run, "sources", lambda text: text.replace("fakes.py", "old.py"), decoder="fake_spec")
    _, lines = said(run, first, capsys)
    assert "old.py" in lines["fake_spec:"] and "changed since" in lines["fake_spec:"]


def test_the_run_itself_is_no_place_for_it_and_a_study_must_be_one(run, capsys):
    assert main(["verify", str(run), f"out={run}"]) == 2
    assert "the run itself" in capsys.readouterr().err
    study = json.loads((run / "study.json").read_text())
    study["config"]["seed"] = "x"
    (run / "study.json").write_text(json.dumps(study))
    assert main(["verify", str(run)]) == 2
    assert "seed must be an integer" in capsys.readouterr().err


@pytest.fixture(scope="module")
def timed(tmp_path_factory) -> Path:
    run = write_run(tmp_path_factory.mktemp("timed") / "run", LINEUP, prompts=40)
    shutil.rmtree(run / "images")  # that rows name pictures is enough
    return run


@pytest.mark.parametrize(
    ("slow", "verdict"),
    [(1.0, "confirmed"), (1.03, "confirmed"), (0.8, "confirmed"), (1.2, "not confirmed")],
)
def test_a_speed_up_may_be_a_little_smaller(slow, verdict, timed, tmp_path):
    now = Path(shutil.copytree(timed, tmp_path / "now"))
    rows = records.read(now / "records.parquet").to_pandas()
    rows["seconds_total"] *= np.random.default_rng(0).normal(1, 0.02, len(rows))
    rows.loc[rows.decoder == "eagle2", "seconds_total"] *= slow
    save(rows, now)
    found = {one.sides[0].decoder: one for one in compared(read_sides(timed), read_sides(now))}
    assert found["eagle2"].verdict == verdict
    assert (found["eagle2"].why == "a smaller speed-up") == (slow > 1.1)
    assert found["lantern"].verdict == found["ar"].verdict == "confirmed"
    assert found["eagle2"].speed.value == pytest.approx(1 / slow, abs=0.03)
    assert found["ar"].images == found["ar"].equal > 40


def test_a_slow_baseline_is_found_by_a_smaller_speed_up(timed, tmp_path):
    """Whoever slows AR down has speed-ups that no one else finds."""
    then = Path(shutil.copytree(timed, tmp_path / "then"))
    plant(then, "seconds_total", lambda seconds: 1.5 * seconds, decoder="ar")
    found = {one.sides[0].decoder: one for one in compared(read_sides(then), read_sides(timed))}
    assert found["eagle2"].why == found["lantern"].why == "a smaller speed-up"


def test_a_study_comes_back_from_what_a_run_keeps_of_it(first):
    kept = json.loads((first / "study.json").read_text())
    found = recomposed(kept["config"], "study.json")
    assert found.hash == kept["config_hash"] and not found.gate


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
    whole = fake_study(*words)
    found = part_of(whole, 0.1)
    assert (found.latency.prompts, found.latency.blocks) == (prompts, blocks)
    assert (found.quality.images, found.quality.batch) == (images, whole.quality.batch)
