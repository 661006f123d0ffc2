"""EAGLE drafters of Chameleon models: published layout and conventions, round trip, refusals."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from decoders.api import DecoderError, Sampling
from decoders.models.chameleon import load_lumina
from decoders.models.eagle_net import EagleNet
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.drafters.eagle_checkpoint import load_eagle, save_eagle
from tests.decoders.compositions import prefilled
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models.made.chameleon import published_drafter as published

CODES = [3, 9, 0]


@pytest.fixture(scope="module")
def model(folder):
    return load_lumina(dtype="float32", checkpoint=str(folder), grid=C.GRID, prefix=C.PREFIX)


def write(folder, tensors: dict[str, torch.Tensor], pickled: bool = True, **config: Any) -> str:
    """The published layout: pytorch_model.bin, config.json where the release has one."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text("{}")
        C.change_config(folder, **config)
    return str(folder)


def load(source: str, model: Any) -> EagleNet:
    return load_eagle(source, model)[0]


def reference_logits(
    hf: Any, layer: Any, file: dict[str, torch.Tensor], ids: list[int]
) -> torch.Tensor:
    """Logits of the code after `ids`, drafted in one pass over an unpadded row: state i stands with
    token i + 1, positions count from the row's first token."""
    states = C.hf_states(hf, ids)[:-1]
    embedded = file["embed_tokens.weight"][ids[1:]]
    x = torch.cat([embedded, states], -1) @ file["fc.weight"].T + file["fc.bias"]
    places = torch.arange(len(x))[None]
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    rope = hf.model.rotary_emb(x[None], places)
    out = layer(x[None], attention_mask=mask, position_embeddings=rope)
    out = out[0] if isinstance(out, tuple) else out
    return hf.lm_head(out[0, -1])


CONFIG = {"hidden_size": C.WIDTH, "num_attention_heads": C.HEADS, "num_hidden_layers": 1}


@pytest.mark.parametrize(("pickled", "config"), [(True, {}), (False, CONFIG)])
def test_the_drafter_follows_the_released_decoding_code(hf, model, tmp_path, pickled, config):
    layer, file = published(hf)
    text = model.text.encode(["a red fox", "snow"])
    codes = torch.tensor([CODES] * 2)
    sampling = Sampling(cfg=3.0)
    with torch.inference_mode():
        states = C.our_states(model, text, codes)  # [4, P + 3, D]
        start = prefilled(model, text, states[:, : C.PREFIX], sampling)
        session = Eagle(model, write(tmp_path, file, pickled, **config)).begin(start, 3, 1)
        one = torch.ones(2, dtype=torch.long)
        session.advance(states[:, C.PREFIX - 1 : C.PREFIX], codes[:, :1], one, 0 * one)
        got = session.advance(states[:, C.PREFIX : -1], codes[:, 1:], 2 * one, one)  # [2, V]
    tokens = [C.token_of(code) for code in range(C.CODES)]
    for row in range(2):
        cond, uncond = (
            reference_logits(
                hf, layer, file, C.prompt_ids(text, row, side) + [C.token_of(c) for c in CODES]
            )[tokens]
            for side in (True, False)
        )
        expected = uncond + 3.0 * (cond - uncond)
        torch.testing.assert_close(got[row, :-1], expected, atol=3e-4, rtol=1e-3)
        assert float(got[row, -1]) < -1e29  # no row end here


def test_round_trip(hf, model, tmp_path):
    _, file = published(hf)
    net = load(write(tmp_path / "published", file), model)
    digest = save_eagle(net, tmp_path / "ours", torch.float32)
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == file.keys() and len(digest) == 64
    for name, values in file.items():
        assert torch.equal(values, written[name]), name
    del file["embed_tokens.weight"]  # a missing one is the target's
    for again in (load(str(tmp_path / "ours"), model), load(write(tmp_path / "part", file), model)):
        assert all(torch.equal(a, again.get_parameter(n)) for n, a in net.named_parameters())
        assert torch.equal(again.code_tokens, model.target.code_tokens)


UP, GATE = "layers.1.mlp.up_proj.weight", "layers.0.mlp.gate_proj.weight"
EMBED = "embed_tokens.weight"


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"num_hidden_layers": 2}, {}, "one layer, config.json says 2"),
        ({}, {UP: torch.zeros(2)}, "unexpected layers.1"),
        ({}, {GATE: torch.zeros(48, 16)}, "width: drafter 16, target 32"),
        ({}, {EMBED: torch.zeros(24, C.WIDTH)}, "vocabulary: drafter 24, target 80"),
        ({"num_attention_heads": 8}, {}, "does config.json belong"),
    ],
)
def test_other_drafters_are_refused(hf, model, tmp_path, config, tensors, message):
    with pytest.raises(DecoderError, match=message):
        load(write(tmp_path, published(hf)[1] | tensors, **config), model)
