"""A study as a user runs it: protocols, resume, failures. On toy decoders."""

import pandas as pd
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.analyse.paired import join_blocks
from bench.run.study import run_study
from tests.bench import fakes


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


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """What the progress bar says."""
    texts = list[str]()
    monkeypatch.setattr("tqdm.tqdm.set_postfix_str", lambda _, text, *more: texts.append(text))
    return texts


def test_blocks_start_apart_and_nearer_ones_count_as_one(fake_study, shown):
    words = ("latency.blocks=3", "latency.prompts=6", "quality.images=0", "latency.spacing=2")
    rows = run_study(fake_study(*words, "decoders=[fake_ar,fake_spec]")).rows
    assert next(i for i, text in enumerate(shown) if "waiting" in text) > 1, "before later blocks"
    starts = pd.to_datetime(rows.groupby("block").started_at.min()).diff().dropna()
    assert len(starts) == 2 and (starts.dt.total_seconds() >= 2).all()
    assert {*join_blocks(rows).block} == {0}, "less than a minute apart"
    minutes = rows.block.map({0: "00:00", 1: "00:59", 2: "01:00"})
    later = rows.assign(started_at="2026-01-01T00:" + minutes + "+00:00")
    assert join_blocks(later).block.tolist() == later.block.map({0: 0, 1: 0, 2: 1}).tolist()
    turned = later.assign(
        started_at=later.started_at.where(
            (later.block != 2) | (later.decoder == "fake_ar"), "2026-01-01T00:01:09+00:00"
        )
    )  # of another decoder's turn
    assert {*join_blocks(turned).block} == {0, 1}, "a block starts with its first image"


def test_blocks_of_timed_prompts_are_spread_over_the_run(fake_study, shown):
    words = ("latency.blocks=2", "quality.reseeds=0", "decoders=[fake_ar,fake_spec]")
    rows = run_study(fake_study(*words)).rows
    assert "measuring the machine" in shown and not any("waiting" in text for text in shown)
    prompts, sizes = zip(*[(p, size) for _, p, size in fakes.CALLS], strict=True)
    second = sizes.index(1, sizes.index(6))  # a call of quality images between blocks
    assert {p for p, size in zip(prompts[:second], sizes[:second], strict=True) if size == 1} == {
        "scene number 0", "scene number 1"
    }  # fmt: skip
    # The second block: each decoder once to warm up, then its two prompts; the other images last.
    assert prompts[second : second + 6] == ("scene number 2",) * 4 + ("scene number 3",) * 2
    assert sizes[second:] == (1,) * 6 + (6,)
    timed = rows[rows.protocol == "latency"]
    assert timed.groupby("prompt_index").block.unique().explode().tolist() == [0, 0, 1, 1]
    assert set(rows[rows.protocol == "quality"].block) == {0}
    fakes.CALLS.clear()
    assert len(run_study(fake_study(*words)).rows) == len(rows)
    assert fakes.CALLS == [], "a finished study decodes nothing again"


PAPER = (
    '{decoder: sd_chain, name: paper, overrides: ["acceptance=synthetic", "acceptance.mal=1.5"]}'
)


def test_a_synthetic_decoder_is_timed_without_pictures_and_called_so(
    tmp_path, capsys, without_plots
):
    """Also without a gate."""
    words = [
        "run", fakes.SEARCHPATH, "study=quick", "model=random24", f"run_dir={tmp_path}",
        "gate=false", "metric=none", "backend=cpu_torch", "backend.threads=1",
        f"decoders=[ar,{PAPER}]", "latency.prompts=2", "latency.blocks=1", "latency.busy=1",
        "latency.warmup_max=1", "quality.images=2", "quality.reseeds=0", "prompts=fake",
    ]  # fmt: skip
    assert main(words) == 0
    run = load(tmp_path)
    (paper,) = (entry for entry in run.entries if entry.name == "paper")
    assert paper.word == "synthetic"
    rows = run.rows[run.rows.decoder == "paper"]
    assert set(rows.protocol) == {"latency"} and not rows.image.any()
    shown = capsys.readouterr().out
    assert "Fastest decoder without a verdict: paper" in shown or "No decoder without" in shown
