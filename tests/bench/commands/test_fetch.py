"""`bench fetch` from a stand-in of the hub, with stand-ins of a study's checkpoints in it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, errors

from bench.__main__ import main
from bench.commands.fetch import metric_weights, sources_of
from bench.config.compose import compose_study
from decoders.models.loading.weights import main_of
from metrics.networks import PUBLIC_FILES, WeightFile
from tests.bench.fakes import recorded
from tests.hub import FILES, Hub, hub_of
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
    """A hub of folders, and a folder of runs."""

    path: Path
    words: list[str]
    hub: Hub

    def fetch(self) -> int:
        with pytest.MonkeyPatch.context() as patch:
            self.hub.install(patch, self.path / "cache")
            return main(["fetch", *WORDS, *self.words, f"run_dir={self.path / 'runs' / 'one'}"])


@pytest.fixture
def place(made: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    folder, words = made
    names = {TARGET: "target", TOKENIZER: "vq", TEXT: "text", DRAFTER: "drafter"}
    hub = Hub(
        {repo: (f"{at:040x}", folder / name) for at, (repo, name) in enumerate(names.items())}
    )
    return Place(tmp_path, words, hub)


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command ends with."""
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    last = shown.strip().splitlines()[-1]
    assert last.startswith("error: ")
    return last


def test_what_a_study_needs_is_downloaded_once_and_read_offline(place, made, tmp_path, monkeypatch):
    assert place.fetch() == 0
    wanted = {"model.safetensors", "pytorch_model.bin", "vq_ds16_t2i.pt", "config.json"}
    assert wanted <= {*place.hub.sent} and "t2i_XL_stage1_256.pt" not in place.hub.sent
    heads = {name: revision for name, (revision, _) in place.hub.folders.items()}
    assert {name: main_of(name).read_text() for name in heads} == heads

    place.hub.folders[DRAFTER] = "f" * 40, made[0] / "drafter"  # the hub goes on; the study stays
    place.hub.sent.clear()
    assert place.fetch() == 0 and place.hub.sent == []
    assert main_of(DRAFTER).read_text() == heads[DRAFTER]

    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", f"run_dir={tmp_path / 'a'}"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["run", *WORDS, *place.words, *few, "shard=0/1"]) == 0
    rows = [row for row in recorded(tmp_path / "a") if row["protocol"] == "quality"]
    assert [row["status"] for row in rows] == ["ok"] * 4


REFUSED = {
    403: (errors.GatedRepoError, ["accept its terms", "hf auth login"]),
    500: (errors.HfHubHTTPError, ["some trouble", "again later"]),
    0: (errors.HfHubHTTPError, ["HF_HUB_OFFLINE"]),
}


@pytest.mark.parametrize("status", REFUSED)
def test_what_cannot_be_had_is_said_before_the_first_download(place, status, capsys, monkeypatch):
    kind, expected = REFUSED[status]
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    place.hub.refused[DRAFTER] = kind("some trouble", response=response)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", not status)
    assert place.fetch() == 2
    last = message(capsys)
    assert DRAFTER in last and all(text in last for text in expected)
    assert place.hub.sent == []


def test_a_repository_without_weights_is_said_before_the_first_download(place, capsys):
    place.hub.folders[TOKENIZER] = "0" * 40, {"README.md": 1, "t2i_XL_stage1_256.pt": 1}
    assert place.fetch() == 2 and place.hub.sent == []
    last = message(capsys)
    assert f"no model.tokenizer in {TOKENIZER}: expected vq_ds16_t2i.pt or" in last
    assert "found README.md, t2i_XL_stage1_256.pt" in last


RELEASED = {  # model -> words, files that are not descriptions, gigabytes
    "llamagen_xl_256": (
        ["decoders=[ar,eagle2]"], {"vq_ds16_t2i.pt", "pytorch_model.bin", "spiece.model"}, 15.0,
    ),
    "janus_pro_7b": (
        ["model.checkpoint=deepseek-ai/Janus-Pro-7B"], {"pytorch_model-00002-of-00002.bin"}, 14.9,
    ),
    # Of the repository that `text` names the tokenizer alone, without 14 GB of weights.
    "lumina_mgpt_7b_512": ([], {"model-00002-of-00002.safetensors", "tokenizer.json"}, 14.3),
    "simplear_05b": (
        ["model.checkpoint=wnma3mz/Janus-Pro-7B-LM"], {"model.safetensors", "decoder.jit"}, 13.9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", RELEASED)
def test_a_released_model_is_fetched_by_the_names_of_its_yaml(model, tmp_path, monkeypatch, capsys):
    own, expected, size = RELEASED[model]
    hub = hub_of(*FILES)
    hub.install(monkeypatch, tmp_path)
    words = ["study=smoke", f"model={model}", "metric=none", f"run_dir={tmp_path / 'run'}"]
    assert main(["fetch", *words, "decoders=[ar]", *own]) == 0
    assert expected <= {*hub.sent} and "config.json" in hub.sent
    shown = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" GB")]
    total = sum(float(line.split()[-2]) for line in shown)
    assert total == pytest.approx(size, abs=0.3)


def test_captions_and_images_are_asked_for_and_networks_are_downloaded(
    tmp_path, monkeypatch, capsys
):
    public = tmp_path / "public.pth"
    public.write_bytes(b"weights")
    file = WeightFile("a network", "inception.pth", public.as_uri(), "9f1c0a9e")
    monkeypatch.setitem(PUBLIC_FILES, "inception", file)
    hub_of(*FILES).install(monkeypatch, tmp_path)
    folder = tmp_path / "metrics"
    words = ["study=lantern_table", "decoders=[ar]", f"metric.weights.folder={folder}"]
    words += [f"metric.weights.{key}={public}" for key in ("vgg", "clip", "hps")]
    asked = ["fetch", *words, f"run_dir={tmp_path / 'run'}"]
    assert main(asked) == 2 and "could not be downloaded" in message(capsys)
    monkeypatch.setitem(PUBLIC_FILES, "inception", WeightFile("a network", file.path, file.url))
    assert main(asked) == 1
    shown = capsys.readouterr().out
    assert (folder / "inception.pth").read_bytes() == b"weights"
    for name in ("prompts.path", "metric.reference"):
        assert f"({name}), to be put there by hand" in shown


def test_the_networks_of_the_papers_metrics_are_fetched_as_evaluate_says() -> None:
    """By `bench fetch metric=coco ...`, with the embedded model, which needs nothing else."""
    words = ["metric=coco", "metric.hps=true", "metric.weights.folder=/weights"]
    config = compose_study(words)
    assert metric_weights(config) == ([*PUBLIC_FILES], Path("/weights"))
    assert {*sources_of(config).values()} == {"metric.reference"}
