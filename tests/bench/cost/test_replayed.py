"""A replayed decoder in a study: its times are measured, its name and its verdict say what it is,
and nothing is said about its quality."""

import html
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bench.__main__ import main
from bench.compare.measured import load
from bench.compare.verdicts import obstacles_of
from tests.bench.fakes import SEARCHPATH

REPLAYED = (
    '{{decoder: replayed, name: {name}, overrides: ["tree.choices=binary_8", "loop.mal=2.5", '
    '"acceptance.k=4"]}}'
)
WORDS = [
    SEARCHPATH, "study=smoke", "model=random24", "prompts=fake", "metric=none", "backend.threads=1",
    "backend.dtype=float32", "latency.prompts=3", "quality.images=2", "quality.batch=2",
    "quality.reseeds=0", "backend.layers=torch",
]  # fmt: skip
Run = Callable[..., tuple[int, Path]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(name: str, *words: str) -> tuple[int, Path]:
        listed = f"decoders=[ar,{REPLAYED.format(name=name)}]"
        return main(["run", *WORDS, listed, f"run_dir={tmp_path}", *words]), tmp_path

    return go


def test_a_replayed_decoder_has_times_and_is_labelled(run, capsys):
    status, folder = run("pp_replayed", "gate=false")
    assert status == 0
    summary = pd.read_csv(folder / "summary.csv").set_index("decoder")
    row = summary.loc["pp_replayed"]
    assert row.exactness == "replayed" and row.speedup > 0 and row.n_latency == 3
    assert row.mal == pytest.approx(2.5, abs=0.6)  # nine codes an image
    for column in ("tv_bound", "tv_moved_mean", "tv_output", "fid", "clip"):
        assert pd.isna(row[column]), column
    assert row.n_quality == 0 and summary.n_quality["ar"] == 2
    records = pd.read_parquet(folder / "records.parquet")
    mine = records[records.decoder == "pp_replayed"]
    assert set(mine.protocol) == {"latency"} and set(mine.loop) == {"replayed(mal=2.5)"}
    assert (mine.image == "").all() and (records.image != "").any()
    out = capsys.readouterr().out
    page = html.unescape((folder / "report" / "index.html").read_text())
    for text in (out, (folder / "report" / "table.md").read_text().replace("\\", ""), page):
        words = " ".join(text.split())
        assert "(pp_replayed: replayed(mal=2.5))" in words  # where the lengths come from
        assert "the codes follow no distribution" in words
    moved = (folder / "report" / "plots" / "moved_mass.svg").read_text()
    assert "replayed: no rule decided" in moved  # and no mass of zero beside a bound of zero


def test_the_gate_passes_no_verdict_on_it(capsys):
    listed = f"decoders=[{REPLAYED.format(name='pp_replayed')}]"
    assert main(["check", *WORDS, listed]) == 0
    out = capsys.readouterr().out
    assert "replayed" in out and "only its times mean anything" in out
    assert "relaxed" not in out.split("expected")[1].replace("exact or relaxed", "")


def test_its_name_must_say_so(run, capsys):
    status, folder = run("lantern_pp")
    assert status == 2 and not (folder / "records.parquet").exists()
    assert "call it lantern_pp_replayed" in capsys.readouterr().err


def test_without_timed_images_there_is_nothing_to_replay_for(run, capsys):
    assert run("pp_replayed", "latency.prompts=0")[0] == 2
    assert "times are all that it is run for" in capsys.readouterr().err


def test_it_reproduces_no_published_figure(run):
    _, folder = run("pp_replayed", "gate=false", "quality.images=0", "report=false")
    rows = {row.decoder: row for row in load(folder / "summary.csv").rows}
    assert rows["pp_replayed"].replayed and not rows["ar"].replayed
    found = obstacles_of(None, rows["pp_replayed"], "mal", None)  # type: ignore[arg-type]
    assert found == ["acceptance was replayed, not decided by the rule"]
