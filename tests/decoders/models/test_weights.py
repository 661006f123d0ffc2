"""Reading and writing weights: checksums, shapes, what is never unpickled; files that are no
weights, and tensors that cannot be: what the command line's cases (tests/edge/test_bad_inputs.py)
do not have."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from decoders.api import DecoderError
from decoders.models.loading.checkpoint import open_checkpoint
from decoders.models.loading.weights import load_into, read_state, require_weights, write_tensors
from decoders.models.t5 import T5Encoder
from tests.checkpoints import LITTLE, write_llamagen, write_t5


def test_weights_come_back_and_damaged_ones_do_not(tmp_path):
    layer, other, path = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), tmp_path / "x.safetensors"
    sha = write_tensors(layer.state_dict(), path, torch.float32)
    load_into(other, read_state(path, sha), "layer")
    assert torch.equal(other.weight, layer.weight)
    whole = path.read_bytes()
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-5]):
        path.write_bytes(content)
        with pytest.raises(DecoderError, match="damaged or was altered"):
            read_state(path, sha)


def test_no_file_runs_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    for name in ("x.pt", "x.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(DecoderError, match="cannot be read"):
            read_state(tmp_path / name)


WEIGHT, BIAS = torch.zeros(2, 3), torch.zeros(2)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"weight": WEIGHT}, r"missing \['bias'\]"),
        ({"weight": torch.zeros(2, 4), "bias": BIAS}, r"expected \(2, 3\), found \(2, 4\)"),
        ({"weight": WEIGHT, "bias": BIAS, "x": torch.zeros(1)}, "unexpected"),
        ({"weight": WEIGHT.char(), "bias": BIAS}, r"safetensors: the tensor weight is int8"),
    ],
)
def test_weights_of_another_module_are_refused(tensors, says):
    with pytest.raises(DecoderError, match=says):
        load_into(torch.nn.Linear(3, 2), tensors, "layer.safetensors")


# ---- files of other kinds -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".safetensors", ".bin", ".pt"])
def test_a_file_that_is_no_checkpoint_is_named_as_what_it_is(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(b"/annex/objects/SHA256E-s12--ab.bin\n")
    for reader in (read_state, require_weights, lambda p: open_checkpoint(str(p))):
        with pytest.raises(DecoderError, match="git annex get"):
            reader(path)


# ---- code of others -----------------------------------------------------------------------------


def test_code_in_a_text_encoders_folder_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    """`auto_map` names a module beside config.json for classes that transformers has itself;
    loading it would make the file `ran`."""
    folder, ran = write_t5(tmp_path / "t5"), tmp_path / "ran"
    (folder / "custom.py").write_text(
        f"open({str(ran)!r}, 'w').close()\n"
        "from transformers import PreTrainedTokenizerFast as Mine, T5Config as Config\n"
    )
    names = {"AutoConfig": "custom.Config", "AutoTokenizer": [None, "custom.Mine"]}
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text()) | {"auto_map": names}
        (folder / name).write_text(json.dumps(content))
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    encoder = T5Encoder(str(folder), length=4, dtype=torch.float32)
    assert encoder.encode(["a cat"]).features.any()
    assert not asked and not ran.exists()


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_a_tensor_in_two_shards_is_refused(tmp_path, name, pickled):
    """An index that maps it to one of them: another reader would take the other one."""
    folder = write_llamagen(tmp_path / "m", LITTLE, shards=3, pickled=pickled)
    (path,) = folder.glob("*.index.json")
    index = json.loads(path.read_text())
    old = open_checkpoint(str(folder)).read(name)
    ending = "bin" if pickled else "safetensors"
    new = folder / f"new-head.{ending}"
    (torch.save if pickled else save_file)({name: old + 1}, new)
    index["weight_map"][name] = new.name
    path.write_text(json.dumps(index))
    with pytest.raises(DecoderError, match=rf"both .* hold {name}; one of them is old"):
        open_checkpoint(str(folder))


def test_a_name_with_and_without_the_prefix_of_a_wrapper_is_refused(tmp_path):
    save_file({"module.a": WEIGHT, "a": WEIGHT + 1}, tmp_path / "x.safetensors")
    with pytest.raises(DecoderError, match=r"with and without `module\.`"):
        read_state(tmp_path / "x.safetensors")
