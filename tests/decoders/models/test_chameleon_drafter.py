"""EAGLE drafters of Chameleon's checkpoints: published layout and conventions, round trip,
refusals."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from decoders.api import DecoderError, Sampling
from decoders.models.nets.eagle import EagleNet
from decoders.propose.drafters.eagle import Eagle, load_eagle, save_eagle
from tests import checkpoints as K
from tests.decoders.compositions import prefilled, through_cache
from tests.decoders.models.test_hub_models import prompt_ids

CODES = [3, 9, 0]
CONFIG = {"hidden_size": K.WIDTH, "num_attention_heads": K.HEADS, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def lumina(folders):
    return K.load("lumina", folders["lumina"])


@pytest.fixture(scope="module")
def published(theirs):
    """transformers' layer, and the drafter's file it stands for."""
    return K.chameleon_drafter(theirs["chameleon"])


def write(folder, tensors: dict[str, torch.Tensor], pickled: bool = True, **config: Any) -> str:
    return str(K.write_folder(folder, tensors, config, pickled))


def net_of(source: str, model: Any) -> EagleNet:
    return load_eagle(source, model)[0]


def reference_logits(
    hf: Any, layer: Any, file: dict[str, torch.Tensor], ids: list[int]
) -> torch.Tensor:
    """Logits of the code after `ids`, drafted in one pass over an unpadded row: state i stands with
    token i + 1, positions count from the row's first token."""
    states = hf.model(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1]
    embedded = file["embed_tokens.weight"][ids[1:]]
    x = torch.cat([embedded, states], -1) @ file["fc.weight"].T + file["fc.bias"]
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    rope = hf.model.rotary_emb(x[None], torch.arange(len(x))[None])
    out = layer(x[None], attention_mask=mask, position_embeddings=rope)
    out = out[0] if isinstance(out, tuple) else out
    return hf.lm_head(out[0, -1])


@pytest.mark.parametrize(("pickled", "config"), [(True, {}), (False, CONFIG)])
def test_the_drafter_follows_the_released_decoding_code(
    theirs, lumina, published, tmp_path, pickled, config
):
    layer, file = published
    text = lumina.text.encode(["a red fox", "snow"])
    codes = torch.tensor([CODES] * 2)
    with torch.inference_mode():
        states, _ = through_cache(lumina, text, codes)  # [4, P + 3, D]
        prefill = prefilled(lumina, text, states[:, : K.PREFIX], Sampling(cfg=3.0))
        session = Eagle(lumina, write(tmp_path, file, pickled, **config)).begin(prefill, 3, 1)
        one = torch.ones(2, dtype=torch.long)
        session.advance(states[:, K.PREFIX - 1 : K.PREFIX], codes[:, :1], one, 0 * one)
        got = session.advance(states[:, K.PREFIX : -1], codes[:, 1:], 2 * one, one)  # [2, V]
    tokens = K.tokens_of_codes("chameleon")[:-1]
    read = [tokens[code] for code in CODES]
    for row in range(2):
        cond, uncond = (
            reference_logits(theirs["chameleon"], layer, file, prompt_ids(text, row, side) + read)
            for side in (True, False)
        )
        expected = (uncond + 3.0 * (cond - uncond))[tokens]
        torch.testing.assert_close(got[row, :-1], expected, atol=3e-4, rtol=1e-3)
        assert float(got[row, -1]) < -1e29  # no row end here


def test_round_trip(lumina, published, tmp_path):
    file = published[1]
    net = net_of(write(tmp_path / "published", file), lumina)
    save_eagle(net, tmp_path / "ours", torch.float32)
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == file.keys()
    for name, values in file.items():
        assert torch.equal(values, written[name]), name
    again = net_of(str(tmp_path / "ours"), lumina)
    assert all(torch.equal(a, again.get_parameter(n)) for n, a in net.named_parameters())
    assert torch.equal(again.code_tokens, lumina.target.code_tokens)


UP, GATE = "layers.1.mlp.up_proj.weight", "layers.0.mlp.gate_proj.weight"
EMBED = "embed_tokens.weight"


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"num_hidden_layers": 2}, {}, "one layer, config.json says 2"),
        ({}, {UP: torch.zeros(2)}, "unexpected layers.1"),
        ({}, {GATE: torch.zeros(48, 16)}, "width: drafter 16, target 32"),
        ({}, {EMBED: torch.zeros(24, K.WIDTH)}, "vocabulary: drafter 24, target 80"),
        ({"num_attention_heads": 8}, {}, "does config.json belong"),
    ],
)
def test_other_drafters_are_refused(lumina, published, tmp_path, config, tensors, message):
    with pytest.raises(DecoderError, match=message):
        net_of(write(tmp_path, published[1] | tensors, **config), lumina)
