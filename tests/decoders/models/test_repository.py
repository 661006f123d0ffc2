"""What is read of a repository, a folder and a file: the file lists are published ones."""

from pathlib import Path

import pytest

from decoders.api import DecoderError
from decoders.models.loading.weights import WEIGHTS, find, locate, needed_files
from decoders.models.pictures import CHAMELEON, LLAMAGEN
from tests.hub import FILES, hub_of, numbered

VQ = (*LLAMAGEN.files, *CHAMELEON.files, *WEIGHTS)


def weights(names: list[str]) -> list[str]:
    return [name for name in names if Path(name).suffix != ".json" and name != "spiece.model"]


CHOSEN = {  # of the others there is one form of the weights
    "peizesun/llamagen_t2i": (VQ, ["vq_ds16_t2i.pt"]),
    "FoundationVision/LlamaGen": (VQ, ["vq_ds16_c2i.pt"]),
    "leloy/Anole-7b-v0.1-vqvae-hf": (VQ, ["model.safetensors"]),
    "seliny2/Chameleon_7B_mGPT": (VQ, ["original_tokenizers/vqgan.ckpt"]),
    "google/flan-t5-xl": (WEIGHTS, [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)]),
    "deepseek-ai/Janus-Pro-7B": (WEIGHTS, [f"pytorch_model-{n:05d}-of-00002.bin" for n in (1, 2)]),
    "wnma3mz/Janus-Pro-7B-LM": (WEIGHTS, ["model.safetensors"]),
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


def test_a_repository_is_fetched_once_and_read_without_a_network(tmp_path, monkeypatch):
    source = "jadohu/LlamaGen-T2I"
    hub = hub_of(source, "FoundationVision/LlamaGen")
    hub.install(monkeypatch, tmp_path)
    folder = locate(source)
    assert hub.sent == ["config.json", "model.safetensors"] and find(folder).exists()
    hub.refused[source] = OSError("no network")
    assert locate(source) == folder
    hub.refused["FoundationVision/LlamaGen"] = OSError("no network")
    with pytest.raises(DecoderError, match=r"could it be fetched \(no network\).*copy it here"):
        locate("FoundationVision/LlamaGen")
    del hub.refused["FoundationVision/LlamaGen"]
    with pytest.raises(DecoderError, match=r"no target in Found.*expected model\.saf.*found READ"):
        locate("FoundationVision/LlamaGen", what="target")
    assert hub.sent == ["config.json", "model.safetensors"]
