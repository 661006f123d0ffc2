"""`backend.layers`: what runs the layers, settled when a study is composed."""

from typing import Any

import pytest

from bench.commands.train import compose_train
from bench.config.compose import choose_layers, compose_study
from bench.config.schema import BackendConfig
from bench.data.errors import ConfigError
from decoders.execution.cpu import library
from tests.bench.fakes import SEARCHPATH

STUDY = [SEARCHPATH, "study=fake", "decoders=[ar]"]


def backend(**words: Any) -> BackendConfig:
    return BackendConfig(
        **({"name": "b", "device": "cpu", "dtype": "float32", "threads": 1} | words)
    )


def test_auto_is_the_kernel_where_it_can_be_built(monkeypatch):
    monkeypatch.setattr(library, "missing", lambda: None)
    assert compose_study([*STUDY, "backend=cpu"]).backend.layers == "native"
    monkeypatch.setattr(library, "missing", lambda: "no compiler")
    assert compose_study([*STUDY, "backend=cpu"]).backend.layers == "torch"


@pytest.mark.parametrize("words", [{"device": "cuda"}, {"execution": "compile"}])
def test_elsewhere_auto_is_torch_and_native_an_error(words, monkeypatch):
    monkeypatch.setattr(library, "missing", lambda: None)
    assert choose_layers(backend(**words)).layers == "torch"
    (found,) = words.values()
    with pytest.raises(ConfigError, match=rf"found .*{found}.*use backend=cpu"):
        backend(**words, layers="native")


def test_training_is_pytorchs():
    words = [SEARCHPATH, "model=random24", "drafter=eagle", "data=random24"]
    assert compose_train([*words, "backend=cpu"]).backend.layers == "torch"
    with pytest.raises(ConfigError, match=r"layers=native is for decoding; leave it at auto"):
        compose_train([*words, "backend.layers=native"])
