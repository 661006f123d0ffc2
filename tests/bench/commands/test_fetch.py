"""`bench fetch` against a hub on this machine, with stand-ins of a study's checkpoints in it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from huggingface_hub import constants

from bench.__main__ import main
from bench.config.compose import compose_study
from tests.bench.commands.hub import Hub, serving
from tests.stand_ins import make

WORDS = ["study=lantern_table", "metric=none", "model.grid=4", "decoders=[ar,eagle2]"]
TARGET, TOKENIZER, TEXT, DRAFTER = (
    "jadohu/LlamaGen-T2I", "peizesun/llamagen_t2i", "google/flan-t5-xl", "jadohu/llamagen_drafter",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder per repository, and the other words of a dry run."""
    folder = tmp_path_factory.mktemp("made")
    words = make(compose_study(WORDS), folder)
    (folder / "vq").mkdir()
    shutil.move(folder / "vq_ds16_t2i.pt", folder / "vq")
    (folder / "vq" / "t2i_XL_stage1_256.pt").write_bytes(bytes(1000))  # of another model
    own = ("model.checkpoint=", "model.drafters.", "model.tokenizer=", "model.text=")
    return folder, [word for word in words if not word.startswith(own)]


@dataclass
class Place:
    """A hub, a cache of it, and a folder of runs."""

    hub: Hub
    path: Path
    words: list[str]

    def fetch(self) -> int:
        return main(["fetch", *WORDS, *self.words, f"run_dir={self.path / 'runs' / 'one'}"])

    def process(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A process of its own."""
        own = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.path / "cache")}
        return subprocess.run(
            [sys.executable, "-m", "bench", *words],
            env=os.environ | own | environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    @property
    def pins(self) -> Path:
        return self.path / "runs" / "revisions.json"


@pytest.fixture
def place(
    made: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    folder, words = made
    names = {TARGET: "target", TOKENIZER: "vq", TEXT: "text", DRAFTER: "drafter"}
    with serving() as hub:
        for repository, name in names.items():
            hub.commit(repository, folder / name)
        at(monkeypatch, hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield Place(hub, tmp_path, words)


def at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The hub is there, as HF_ENDPOINT says it to a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command ends with."""
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    last = shown.strip().splitlines()[-1]
    assert last.startswith("error: ")
    return last


def test_what_a_study_needs_is_downloaded_once_and_read_offline(place, made, tmp_path):
    assert place.fetch() == 0
    wanted = {"model.safetensors", "pytorch_model.bin", "vq_ds16_t2i.pt", "config.json"}
    assert wanted <= set(place.hub.bodies) and "t2i_XL_stage1_256.pt" not in place.hub.bodies
    heads = {name: next(iter(commits)) for name, commits in place.hub.commits.items()}
    assert json.loads(place.pins.read_text()) == heads

    newer = tmp_path / "newer"  # the hub goes on; the study stays
    shutil.copytree(made[0] / "drafter", newer)
    (newer / "config.json").write_text("{}")
    place.hub.commit(DRAFTER, newer)
    place.hub.bodies.clear()
    assert place.fetch() == 0 and place.hub.bodies == []
    assert json.loads(place.pins.read_text()) == heads

    asked = place.hub.asked
    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", f"run_dir={tmp_path / 'a'}"]
    words = [*WORDS, *place.words, *few]
    done = place.process("run", *words, "shard=0/1", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert place.hub.asked == asked, "a run asks the hub for nothing"
    rows = [pd.read_parquet(path) for path in (tmp_path / "a").glob("rows/*/quality-*.parquet")]
    assert len(rows) == 4 and {row.status[0] for row in rows} == {"ok"}


REFUSED = {
    "gated, nobody logged in": ((401, "GatedRepo"), "accept its terms", "hf auth login"),
    "a hub with troubles": ((500, ""), "500", "again later"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_repository_that_cannot_be_had_says_what_to_do(place, case, capsys):
    place.hub.refused[DRAFTER], *expected = REFUSED[case]
    assert place.fetch() == 2
    last = message(capsys)
    assert DRAFTER in last
    for text in expected:
        assert text in last
    assert set(json.loads(place.pins.read_text())) == {TARGET, TOKENIZER, TEXT}, "what came is kept"


def test_a_hub_out_of_reach_says_what_to_do(place, monkeypatch, capsys):
    at(monkeypatch, "http://127.0.0.1:9")  # nobody listens there
    assert place.fetch() == 2
    last = message(capsys)
    assert "127.0.0.1:9" in last and "HF_HOME" in last


def test_offline_is_said(place, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert place.fetch() == 2
    assert "HF_HUB_OFFLINE" in message(capsys) and place.hub.asked == 0


def test_a_pinned_revision_that_is_gone_says_where_it_is_noted(place, capsys):
    place.pins.parent.mkdir()
    place.pins.write_text(json.dumps({DRAFTER: "0" * 40}))
    assert place.fetch() == 2
    last = message(capsys)
    assert str(place.pins) in last and "0000" in last
