"""Weight files: one list of what is missing, layouts that load."""

import pytest
import torch
from safetensors.torch import save_file

from decoders.models.weights import read_state
from metrics import MetricError
from metrics.official.checkpoint import FILES, locate

STATE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


def test_everything_that_is_missing_is_listed_at_once(tmp_path):
    here = tmp_path / "here.pth"
    here.write_bytes(b"x")
    given = {"inception": str(here), "hps": str(tmp_path / "gone.pt")}
    with pytest.raises(MetricError) as caught:
        locate(["inception", "vgg", "clip", "hps"], given, tmp_path / "weights")
    text = str(caught.value)
    assert "inception" not in text
    for key in ("vgg", "clip", "hps"):
        assert FILES[key].url in text and f"weights.{key}=FILE" in text
        assert str(tmp_path / "weights" / FILES[key].path) in text
    assert f"weights.hps={tmp_path / 'gone.pt'} does not exist" in text


def test_files_are_found_by_their_public_names_in_the_folder(tmp_path):
    for key, name in (("clip", FILES["clip"].other), ("hps", FILES["hps"].path)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(key.encode())
    found = locate(["clip", "hps"], {}, tmp_path)
    assert found["clip"].path.name == "open_clip_pytorch_model.bin"
    assert found["hps"].sha256 != found["clip"].sha256
    with pytest.raises(MetricError, match="no weights 'hpsv2'"):
        locate(["clip"], {"hpsv2": "x"}, tmp_path)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save(STATE, path),
        lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False),
        lambda path: torch.save({"state_dict": STATE, "epoch": 3}, path),
        lambda path: torch.save({f"module.{k}": v for k, v in STATE.items()}, path),
        lambda path: save_file(STATE, path),
    ],
    ids=["zip", "legacy", "state_dict", "module", "safetensors"],
)
def test_every_layout_loads(tmp_path, write, request):
    path = tmp_path / ("w.safetensors" if "safetensors" in request.node.name else "w.pt")
    write(path)
    found = read_state(path)
    assert all(torch.equal(found.pop(name), wanted) for name, wanted in STATE.items()) and not found
