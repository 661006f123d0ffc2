"""Reading and writing weights: checksums, shapes, what is never unpickled; files that are no
weights, and tensors that cannot be: what the command line's cases (tests/edge/test_bad_inputs.py)
do not have."""

import json
import pickle

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.models.checkpoint import open_checkpoint, read_pickle
from decoders.models.llamagen import load
from decoders.models.text.t5 import T5Encoder
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.pictures import LLAMAGEN, read_vq
from decoders.models.weights import (
    load_into,
    read_tensors,
    require_weights,
    write_weights,
)
from tests.decoders.models import released as R
from tests.decoders.models.made.t5 import save_t5


def test_weights_come_back_and_damaged_ones_do_not(tmp_path):
    layer, other, path = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), tmp_path / "x.safetensors"
    sha = write_weights(layer, path, torch.float32)
    load_into(other, read_tensors(path, sha), "layer")
    assert torch.equal(other.weight, layer.weight)
    whole = path.read_bytes()
    for content, expected, says in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), sha, "damaged or was altered"),
        (whole[:-5], sha, "damaged or was altered"),
        (whole[:-5], None, "truncated or another"),
    ):
        path.write_bytes(content)
        with pytest.raises(DecoderError, match=says):
            read_tensors(path, expected)


def test_pickles_are_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    for name, says in [("x.pt", "never unpickled"), ("x.safetensors", "cannot be read")]:
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(DecoderError, match=says):
            read_tensors(tmp_path / name)


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
    read = read_tensors if ending == ".safetensors" else read_pickle
    for reader in (read, require_weights, lambda p: open_checkpoint(str(p))):
        with pytest.raises(DecoderError, match="git annex get"):
            reader(path)


# ---- tokenizers that only decode ----------------------------------------------------------------

VQ = VQConfig(codes=24, dim=4, channels=32, ch_mult=(1, 2), res_blocks=1, z_channels=8, grid=4,
              group_width=1)  # fmt: skip


def vq_file(path, keep):
    torch.manual_seed(0)
    state = LlamaGenVQ(VQ).state_dict()
    torch.save({"model": {k: v for k, v in state.items() if keep(k)}}, path)
    return open_checkpoint(str(path))


def decodes(name):
    return not name.startswith(("encoder.", "quant_conv."))


def test_a_file_with_a_decoder_alone_draws_the_same_pictures(tmp_path):
    whole = read_vq(LLAMAGEN, vq_file(tmp_path / "whole.pt", lambda name: True), 4)
    half = read_vq(LLAMAGEN, vq_file(tmp_path / "half.pt", decodes), 4)
    codes = torch.arange(16).view(1, 16)
    assert torch.equal(half.decode(codes), whole.decode(codes))
    assert whole.encode(torch.rand(1, 3, 8, 8)).shape == (1, 16)
    vq_file(R.write_hub(tmp_path / "m") / "vq_ds16_t2i.pt", decodes)
    model = load(dtype="float32", checkpoint=str(tmp_path / "m"))
    assert torch.equal(model.tokenizer.decode(codes), whole.decode(codes))
    with pytest.raises(DecoderError, match="only turns codes into pictures"):
        model.tokenizer.encode(torch.rand(1, 3, 8, 8))
    assert model.sampling == Sampling(cfg=7.5, top_k=R.VOCAB)
    for keep, says in (
        (lambda name: name != "encoder.conv_out.bias", r"missing encoder\.conv_out\.bias"),
        (lambda name: not name.startswith("decoder."), r"expected decoder\.conv_in\.weight"),
    ):
        with pytest.raises(DecoderError, match=says):
            read_vq(LLAMAGEN, vq_file(tmp_path / "torn.pt", keep), 4)


# ---- code of others -----------------------------------------------------------------------------


def test_code_in_a_text_encoders_folder_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    """`auto_map` names a module beside config.json for classes that transformers has itself;
    loading it would make the file `ran`."""
    folder, ran = save_t5(tmp_path / "t5"), tmp_path / "ran"
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
