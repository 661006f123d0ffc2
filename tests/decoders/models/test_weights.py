"""Reading and writing weights: checksums, shapes, and what is never unpickled."""

from __future__ import annotations

import pickle

import pytest
import torch

from decoders.api import DecoderError
from decoders.models.weights import load_into, read_json, read_tensors, write_weights


@pytest.fixture
def saved(tmp_path):
    """A small layer's weights and their hash."""
    path = tmp_path / "layer.safetensors"
    layer = torch.nn.Linear(3, 2)
    return layer, path, write_weights(layer, path, torch.float32)


def test_weights_come_back(saved):
    layer, path, sha = saved
    other = torch.nn.Linear(3, 2)
    load_into(other, read_tensors(path, sha), "layer")
    assert torch.equal(other.weight, layer.weight)


def test_altered_weights_are_refused(saved):
    _, path, sha = saved
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DecoderError, match="damaged or was altered"):
        read_tensors(path, sha)


def test_truncated_weights_are_refused(saved):
    _, path, sha = saved
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DecoderError, match="damaged or was altered"):
        read_tensors(path, sha)
    with pytest.raises(DecoderError, match="truncated or another"):
        read_tensors(path)


def test_pickles_are_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    for name, says in [("x.pt", "never unpickled"), ("x.safetensors", "cannot be read")]:
        path = tmp_path / name
        path.write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(DecoderError, match=says):
            read_tensors(path)


def test_missing_weights_say_how_to_get_them(tmp_path):
    with pytest.raises(DecoderError, match="make tiny"):
        read_tensors(tmp_path / "none.safetensors")
    with pytest.raises(DecoderError, match="give the folder's full path"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "says"), [("{", "not valid JSON"), ("[1]", "must hold an object")]
)
def test_a_broken_card_is_refused(tmp_path, text, says):
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(DecoderError, match=says):
        read_json(path)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"weight": torch.zeros(2, 3)}, r"missing \['bias'\]"),
        (
            {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)},
            r"expected \(2, 3\), found \(2, 4\)",
        ),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "x": torch.zeros(1)}, "unexpected"),
    ],
)
def test_weights_of_another_module_are_refused(tensors, says):
    with pytest.raises(DecoderError, match=says):
        load_into(torch.nn.Linear(3, 2), tensors, "layer.safetensors")


def test_what_an_error_lists_is_in_order():
    """Of eight wrong tensors it names four, whichever run it is: the first ones by name."""
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(3, 2, bias=False) for name in "hgfedcba"})
    wrong = {f"{name}.weight": torch.zeros(2, 4) for name in "hgfedcba"}
    with pytest.raises(DecoderError) as refused:
        load_into(layers, wrong, "layers.safetensors")
    places = [str(refused.value).index(f"{name}.weight: expected") for name in "abcd"]
    assert places == sorted(places)
    assert "e.weight" not in str(refused.value)
