"""`bench fetch` from a stand-in of the hub, with stand-ins of a study's checkpoints in it."""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from bench.__main__ import main
from bench.config.checkpoints import main_of
from bench.config.compose import compose_study
from tests.bench.fakes import recorded
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
    """A hub of folders, the cache that its client keeps, and a folder of runs."""

    path: Path
    words: list[str]
    folders: dict[str, tuple[str, Path]]  # repository -> its newest revision, its files
    refused: dict[str, Exception] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def fetch(self) -> int:
        return main(["fetch", *WORDS, *self.words, f"run_dir={self.path / 'runs' / 'one'}"])

    @property
    def pins(self) -> Path:
        return self.path / "runs" / "revisions.json"

    def model_info(self, _: object, source: str, revision: str | None) -> SimpleNamespace:
        if source in self.refused:
            raise self.refused[source]
        newest, folder = self.folders[source]
        files = [SimpleNamespace(rfilename=path.name) for path in folder.iterdir()]
        return SimpleNamespace(sha=revision or newest, siblings=files)

    def snapshot(self, source: str, revision: str | None, allow_patterns: list[str]) -> None:
        newest, folder = self.folders[source]
        cached = main_of(source).parents[1] / "snapshots" / (revision or newest)
        cached.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            wanted = any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns)
            if wanted and not (cached / path.name).exists():
                self.sent.append(path.name)
                shutil.copy(path, cached)


@pytest.fixture
def place(made: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    folder, words = made
    names = {TARGET: "target", TOKENIZER: "vq", TEXT: "text", DRAFTER: "drafter"}
    folders = {repo: (f"{at:040x}", folder / name) for at, (repo, name) in enumerate(names.items())}
    found = Place(tmp_path, words, folders)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *args, **named: found.model_info(*args, **named)
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found.snapshot)
    return found


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
    assert wanted <= {*place.sent} and "t2i_XL_stage1_256.pt" not in place.sent
    heads = {name: revision for name, (revision, _) in place.folders.items()}
    assert json.loads(place.pins.read_text()) == heads

    place.folders[DRAFTER] = "f" * 40, made[0] / "drafter"  # the hub goes on; the study stays
    place.sent.clear()
    assert place.fetch() == 0 and place.sent == []
    assert json.loads(place.pins.read_text()) == heads

    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", f"run_dir={tmp_path / 'a'}"]
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "bench", "run", *WORDS, *place.words, *few, "shard=0/1"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [row for row in recorded(tmp_path / "a") if row["protocol"] == "quality"]
    assert [row["status"] for row in rows] == ["ok"] * 4


REFUSED = {
    errors.GatedRepoError: (403, ["accept its terms", "hf auth login"]),
    errors.RepositoryNotFoundError: (404, ["no such repository", "look at its name"]),
    errors.RevisionNotFoundError: (404, ["remove the line of it in", "revisions.json"]),
    errors.HfHubHTTPError: (500, ["some trouble", "again later"]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_repository_that_cannot_be_had_says_what_to_do(place, kind, capsys):
    status, expected = REFUSED[kind]
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    place.refused[DRAFTER] = kind("some trouble", response=response)
    assert place.fetch() == 2
    last = message(capsys)
    assert DRAFTER in last and all(text in last for text in expected)
    assert set(json.loads(place.pins.read_text())) == {TARGET, TOKENIZER, TEXT}, "what came is kept"


def test_offline_is_said(place, monkeypatch, capsys):
    place.refused = dict.fromkeys(place.folders, OSError("no network"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert place.fetch() == 2
    assert "HF_HUB_OFFLINE" in message(capsys)
