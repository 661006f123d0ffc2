"""The attention that a run chose is kept in study.json, and whoever goes on with the run uses it:
codes in half precision depend on it. Which of two candidates is the faster one is for the test to
say."""

import importlib
from pathlib import Path

import pytest
import torch

from bench.data.errors import FolderError
from bench.records.study import read_identity
from bench.run import session
from bench.run.runner import run_study
from bench.run.shards import Shard, run_shard
from decoders.kernels import candidates
from decoders.kernels.candidates import AttentionShape, Products
from decoders.kernels.selected import Kernels
from tests.bench import fakes

UNTIMED = "latency.prompts=0"
LOOP = (
    "decoders=[{decoder: fake_ar, overrides: "
    "['loop._target_=tests.bench.run.test_attention.Attending']}]"
)
MISSING: set[str] = set()  # candidates that cannot run
FAST: list[str] = []  # the one that is the fastest
TRIED: list[str] = []  # candidates that were measured


class Named(Products):
    def __init__(self, name: str) -> None:
        self.name = name

    def reason(self, shape):
        return f"{self.name} is not installed" if self.name in MISSING else None

    def attend(self, *args):
        TRIED.append(self.name)
        return super().attend(*args)


class Attending(fakes.FakeLoop):
    """Its first code says which attention ran."""

    def __init__(self, model, **options) -> None:
        super().__init__(model, **options)
        self.kernels = model.target.kernels

    def generate(self, text, noise, *, pairs=0):
        made = super().generate(text, noise, pairs=pairs)
        shape = AttentionShape(2, 1, 2, 8, 8, torch.float32, torch.device("cpu"))
        name = self.kernels.of(shape, 16, 1).name
        made.codes[:, 0] = ["left", "right"].index(name)
        return made


@pytest.fixture(autouse=True)
def two_candidates(monkeypatch):
    for found in (FAST, TRIED, MISSING):
        found.clear()

    def known():
        return Named("left"), Named("right")

    def given(model, backend):
        model.target.kernels = Kernels()

    monkeypatch.setattr(candidates, "implementations", known)
    choose = importlib.import_module("decoders.kernels.choose")
    monkeypatch.setattr(choose, "implementations", known)
    monkeypatch.setattr(choose, "_timed", lambda ways, *_: {n: 2.0 - (n in FAST) for n in ways})
    monkeypatch.setattr(session, "set_attention", given)


def used(rows) -> set[int]:
    """Which attentions the rows were decoded with."""
    assert (rows.status == "ok").all()
    return {int(codes[0]) for codes in rows.codes}


def chosen(path) -> list[str]:
    return [record["name"] for record in read_identity(Path(path))["attention"]]


def half_done(config) -> None:
    for path in sorted(Path(config.run_dir).glob("rows/*/*.parquet"))[1::2]:
        path.unlink()


@pytest.mark.parametrize(("first", "later"), [("left", "right"), ("right", "left")])
def test_a_resumed_run_uses_the_attention_that_it_began_with(fake_study, first, later):
    config = fake_study(LOOP, UNTIMED)
    FAST[:] = [first]
    before = run_study(config).rows
    assert chosen(config.run_dir) == [first]
    half_done(config)
    FAST[:], TRIED[:] = [later], []
    after = run_study(config).rows
    assert [*map(list, after.codes)] == [*map(list, before.codes)]
    assert not TRIED, "nothing is measured again"
    assert chosen(config.run_dir) == [first]


@pytest.mark.parametrize(
    ("name", "says"), [("left", "left is not installed"), ("up", "attention is auto or one of")]
)
def test_an_attention_that_cannot_run_here_is_refused(fake_study, name, says):
    config = fake_study(LOOP, UNTIMED)
    FAST[:] = ["left"]
    run_study(config)
    half_done(config)
    study = Path(config.run_dir) / "study.json"
    study.write_text(study.read_text().replace('"name": "left"', f'"name": "{name}"'))
    MISSING.add("left")
    before = {p: p.read_bytes() for p in Path(config.run_dir).rglob("*") if p.is_file()}
    with pytest.raises(FolderError) as error:
        run_study(config)
    assert f"{config.run_dir} was begun with an attention" in str(error.value)
    assert says in str(error.value) and "Choose another folder" in str(error.value)
    assert {p: p.read_bytes() for p in Path(config.run_dir).rglob("*") if p.is_file()} == before


def test_workers_go_by_the_first_choice(fake_study):
    config = fake_study(LOOP, UNTIMED)
    FAST[:] = ["right"]
    run_shard(config, Shard(0, 2))
    FAST[:], TRIED[:] = ["left"], []
    run_shard(config, Shard(1, 2))
    assert used(run_study(config).rows) == {1} and not TRIED
    assert chosen(config.run_dir) == ["right"]
