"""What is read of a repository, a folder and a file: the file lists are published ones. A hub id
may name a revision, and a model's hashes name the commit that was read."""

from pathlib import Path

import pytest

from decoders.api import DecoderError
from decoders.models.loading.weights import (
    WEIGHT_FILES,
    commit_of,
    find,
    locate,
    main_of,
    needed_files,
    repository_of,
)
from decoders.models.pictures import CHAMELEON, LLAMAGEN
from tests.hub import FILES, Hub, hub_of, numbered

SOURCE, OTHER, OLD = "jadohu/LlamaGen-T2I", "FoundationVision/LlamaGen", "a" * 40
OFFLINE = OSError("no network")

VQ = (*LLAMAGEN.files, *CHAMELEON.files, *WEIGHT_FILES)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = hub_of(SOURCE, OTHER)
    made.install(monkeypatch, tmp_path)
    return made


def weights(names: list[str]) -> list[str]:
    return [name for name in names if Path(name).suffix != ".json" and name != "spiece.model"]


CHOSEN = {  # of the others there is one form of the weights
    "peizesun/llamagen_t2i": (VQ, ["vq_ds16_t2i.pt"]),
    "FoundationVision/LlamaGen": (VQ, ["vq_ds16_c2i.pt"]),
    "leloy/Anole-7b-v0.1-vqvae-hf": (VQ, ["model.safetensors"]),
    "seliny2/Chameleon_7B_mGPT": (VQ, ["original_tokenizers/vqgan.ckpt"]),
    "google/flan-t5-xl": (WEIGHT_FILES, [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)]),
    "deepseek-ai/Janus-Pro-7B": (
        WEIGHT_FILES,
        [f"pytorch_model-{n:05d}-of-00002.bin" for n in (1, 2)],
    ),
    "wnma3mz/Janus-Pro-7B-LM": (WEIGHT_FILES, ["model.safetensors"]),
}


@pytest.mark.parametrize("source", CHOSEN)
def test_one_complete_form_of_the_weights_is_read(source, tmp_path):
    files, expected = CHOSEN[source]
    names = needed_files(FILES[source], files)
    assert weights(names) == expected
    assert "config.json" in names or "config.json" not in FILES[source]
    assert ("spiece.model" in names) == (source == "google/flan-t5-xl")
    for name in FILES[source]:  # the same files in a folder
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find(tmp_path, files)
    assert found in (tmp_path / expected[0], *tmp_path.glob("*.index.json"))


def test_of_an_incomplete_form_what_is_there_is_read():
    """So that the error names what is not."""
    torn = dict(list(numbered("model", "safetensors", 1, 1, 1).items())[1:])
    assert len(weights(needed_files(torn))) == 2
    assert needed_files({"README.md": 0}) == []


def test_a_repository_is_fetched_once_and_read_without_a_network(hub):
    folder = locate(SOURCE)
    assert hub.sent == ["config.json", "model.safetensors"] and find(folder).exists()
    hub.refused |= {SOURCE: OFFLINE, OTHER: OFFLINE}
    assert locate(SOURCE) == folder
    with pytest.raises(DecoderError, match=r"could it be fetched \(no network\).*copy it here"):
        locate(OTHER)
    del hub.refused[OTHER]
    with pytest.raises(DecoderError, match=r"no target in Found.*expected model\.saf.*found READ"):
        locate(OTHER, what="target")
    assert hub.sent == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("revision", [OLD, "v1.0"])
def test_a_pinned_revision_is_read_and_named_and_the_newest_stays(hub, revision, tmp_path):
    newest, pinned = locate(SOURCE), locate(f"{SOURCE}@{revision}")
    assert repository_of(f"{SOURCE}@{revision}") == (SOURCE, revision)
    assert pinned.name == revision != newest.name
    assert main_of(SOURCE).read_text() == newest.name
    hub.refused[SOURCE] = OFFLINE
    assert locate(f"{SOURCE}@{revision}") == pinned
    assert commit_of(pinned) == {f"commit of {SOURCE}": revision} and commit_of(tmp_path) == {}


@pytest.mark.parametrize("white", ["\n", "\r\n", " ", "\ufeff"])
def test_a_cache_that_was_copied_by_hand_is_read(hub, white):
    """`echo SHA > refs/main`: the hub's client takes the newline for a part of the name."""
    folder, main = locate(SOURCE), main_of(SOURCE)
    revision = main.read_text()
    main.write_text(white + revision if white == "\ufeff" else revision + white)
    hub.folders[SOURCE] = "f" * 40, hub.folders[SOURCE][1]
    hub.refused[SOURCE] = OFFLINE
    assert locate(SOURCE) == folder


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ALL_PROXY", ImportError("Using SOCKS proxy, but the 'socksio' package is not installed")),
        ("all_proxy", ValueError("Unknown scheme for proxy URL URL('socks://127.0.0.1:9/')")),
        ("HTTPS_PROXY", ValueError("Unknown scheme for proxy URL URL('socks4://127.0.0.1:9/')")),
    ],
)
def test_a_proxy_that_the_hubs_client_cannot_use_is_named(hub, monkeypatch, name, error):
    hub.refused[SOURCE] = error
    monkeypatch.setenv(name, "socks5://user:secret@127.0.0.1:9")
    with pytest.raises(DecoderError, match=rf"proxy of .*{name}.*socks5:// for socks://") as caught:
        locate(SOURCE)
    assert "secret" not in str(caught.value)
    hub.refused[SOURCE] = ImportError("no module named x")
    with pytest.raises(ImportError, match="named x"):
        locate(SOURCE)
    monkeypatch.setenv(name, "http://127.0.0.1:abc")
    with pytest.raises(DecoderError, match=rf"proxy of .*{name} \(Port .*'abc'.*correct it"):
        locate(SOURCE)
