"""`python -m bench plan`: what a disk must hold and where it is looked for; stand-ins that run."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.config.schema import StudyConfig
from bench.cost.plan.command import make
from bench.cost.plan.parts import Need, merged
from bench.data.errors import BenchError
from tests import stand_ins


def needs_of(config: StudyConfig) -> list[Need]:
    plan = make(config)
    return [replace(need, studies=(config.name,)) for need in (*plan.parts, *plan.others)]


@pytest.fixture
def no_hub(tmp_path, monkeypatch) -> Path:
    """A hub cache of our own, empty."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


def test_every_part_of_a_study_is_listed_with_where_it_is_looked_for(no_hub):
    found = {need.role: need for need in needs_of(compose_study(["study=lantern_table"]))}
    assert set(found) == {
        "target", "tokenizer", "text", "drafter", "metric", "captions", "reference",
    }  # fmt: skip
    target = found["target"]
    assert target.missing and target.source == "jadohu/LlamaGen-T2I"
    assert str(no_hub) in target.where and "HF_HOME" in target.where
    assert target.revision == "main" and target.setting == "model.checkpoint"
    assert found["captions"].where.endswith("data/coco/annotations/captions_val2017.json")
    names = [n.source for n in needs_of(compose_study(["study=lantern_table"])) if
             n.role == "metric"]  # fmt: skip
    assert len(names) == 3 and any("inception" in name for name in names)


def test_the_commit_of_a_fetched_repository_is_shown(no_hub):
    refs = no_hub / "models--jadohu--LlamaGen-T2I" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("0123456789abcdef")
    needs = needs_of(compose_study(["study=lantern_table", "metric=none"]))
    assert next(n for n in needs if n.role == "target").revision == "main = 0123456789ab"


def test_a_tokenizer_that_nothing_names_is_missing(no_hub):
    words = ["study=vvs_table", "metric=none", "model.tokenizer=null"]
    (need,) = [n for n in needs_of(compose_study(words)) if n.role == "tokenizer"]
    assert need.state.startswith("missing model.tokenizer") and need.setting == "model.tokenizer"


def test_what_two_studies_need_is_listed_once(no_hub):
    words = (["study=lantern_table", "metric=none"], ["study=vvs_table", "metric=none"])
    needs = merged(need for study in words for need in needs_of(compose_study(study)))
    (target,) = [need for need in needs if need.role == "target"]
    assert target.studies == ("lantern_table", "vvs_table")


def test_the_command_lists_one_study_and_writes_it(no_hub, tmp_path, capsys):
    out = tmp_path / "needs.csv"
    assert main(["plan", "study=anole_table", f"out={out}"]) == 0
    assert "are missing" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {"leloy/Anole-7b-v0.1-hf", "jadohu/anole_drafter"} <= {row["source"] for row in rows}
    every = tmp_path / "every.md"
    assert main(["plan", "study=all", "metric=none", f"out={every}"]) == 0
    shown = capsys.readouterr().out
    assert "need nothing but what is embedded: " in shown and "smoke" in shown
    (line,) = [x for x in every.read_text().splitlines() if "leloy/Anole-7b-v0.1-hf" in x]
    line = line.replace("\\", "")
    assert "anole_table" in line and str(no_hub) in line


@pytest.mark.parametrize("study", ["lantern_table", "lantern_pp_table", "anole_table"])
def test_a_study_runs_on_its_stand_ins(study, tmp_path):
    words = [f"study={study}", "metric=none", "model.grid=4", "decoders=[ar,eagle2]"]
    settings = stand_ins.make(compose_study(words), tmp_path / "made")
    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", "report=false"]
    where = f"run_dir={tmp_path / 'run'}"
    assert main(["run", *words, *settings, *few, where]) == 0
    rows = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert set(rows.decoder) == {"ar", "eagle2"} and set(rows.status) == {"ok"}
    assert (tmp_path / "run" / rows.image[0]).is_file()
    assert not [need for need in needs_of(compose_study([*words, *settings])) if need.missing]


def test_the_networks_of_the_metrics_have_the_public_layout_and_are_small(tmp_path):
    from tests.metrics.made import window, write

    path = write(tmp_path / "clip.bin", "clip")
    assert path.stat().st_size < 5e6
    state = torch.load(path, weights_only=True)
    assert state["visual.conv1.weight"].shape == (768, 3, 32, 32)
    assert state["token_embedding.weight"].shape == (49408, 512)
    found = window((64, 64), 2.0, torch.Generator().manual_seed(0))
    assert float(found.std()) == pytest.approx(2.0, rel=0.3)
    assert int(torch.linalg.matrix_rank(found)) == 64


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study=lantern_tabel"], "lantern_table"),
        (["study=smoke", "out=list.txt"], ".csv or .md"),
    ],
)
def test_bad_words_are_explained(tmp_path, capsys, words, expected):
    (tmp_path / "file").write_text("")
    given = [word.replace("{here}", str(tmp_path)) for word in words]
    assert main(["plan", *given]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("study", "folder", "expected"),
    [
        ("smoke", "new", "runs on an embedded model"),
        ("lantern_table", "", "not empty"),
        ("replay", "new", "there is no stand-in for llamagen_xl_256_random"),
    ],
)
def test_what_has_no_stand_ins_is_said(tmp_path, study, folder, expected):
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match=expected):
        stand_ins.main([str(tmp_path / folder), f"study={study}"])
