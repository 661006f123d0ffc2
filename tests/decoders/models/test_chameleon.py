"""Chameleon checkpoints and their EAGLE drafters load and agree with transformers' Chameleon; row
ends stand in their positions whatever decodes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoders.api import DecoderError, Sampling
from decoders.distribution import code_logits
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.zipar import forced_codes
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import barred_codes
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle, load_eagle, save_eagle
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from tests.decoders.compositions import drafting, prefilled, through_cache
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models.random_checkpoints.chameleon import published_drafter as published

PROMPTS = ["a red fox", "a fox in the snow", "snow"]
TREES: dict[str, Any] = {
    "chain": Chain(depth=3),
    "eagle1": Static(choices="binary_8"),
    "eagle2": Dynamic(depth=3, top_k=3, nodes=8),
}


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ("none", "none"), ("chain", "exact"), ("chain", "released"), ("eagle1", "lantern_pp"),
        ("eagle1", "released"), ("eagle2", "exact"), ("eagle2", "lantern"),
    ],
)  # fmt: skip
def test_row_ends_stand_in_their_places(folder, tree, rule):
    model = C.lumina(folder)
    sampling = Sampling(cfg=2.0, top_k=8)
    rules = {
        "exact": Exact(),
        "lantern": Lantern(model, k=6, delta=0.4),
        "lantern_pp": LanternPP(model, k=6, lam=4.0),
        "released": Lantern(model, k=6, delta=0.4, residual="released"),
    }
    decoder: Any = Autoregressive(model, sampling)
    if tree in TREES:
        eagle = Eagle(model, str(folder / "drafter"))
        decoder = drafting(model, eagle, TREES[tree], rules[rule], sampling)
    text = model.text.encode(PROMPTS * 4)
    noise = Noise.for_prompts(0, [str(i) for i in range(12)], model.target.length)
    made = decoder.generate(text, noise)
    rows = made.codes.view(12, C.GRID, C.GRID + 1)
    assert (rows[:, :, -1] == C.CODES).all()
    assert (rows[:, :, :-1] < C.CODES).all()
    assert (made.trace.tv_shift <= made.trace.bound + 1e-6).all()
    assert model.tokenizer.decode(made.codes).shape == (12, 3, 2 * C.GRID, 2 * C.GRID)


def test_heads_that_share_one_norm_load_alike(hf, folder, tmp_path):
    """Older conversions (Lumina-mGPT, Anole) store one scale for all heads, [1, d] or [d]."""
    shared = C.hf_model()
    for layer in shared.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            for values in norm.parameters():
                values.data[:] = values.data[:1].clone()
    C.write_checkpoint(tmp_path / "new", shared)
    C.write_checkpoint(tmp_path / "old", shared)

    def once(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        norms = [n for n in tensors if ".q_norm." in n or ".k_norm." in n]
        return tensors | {
            n: (tensors[n][0] if ".layers.0." in n else tensors[n][:1]).clone() for n in norms
        }

    C.change_tensors(tmp_path / "old", once)
    new, old = (C.anole(tmp_path / name).target.state_dict() for name in ("new", "old"))
    assert new.keys() == old.keys()
    assert all(torch.equal(new[name], old[name]) for name in new)
    other = C.anole(folder).target.layers[0].attention.qk_norm.weight
    assert not torch.equal(other[0], other[1])  # by head, where they are given by head


def test_structural_codes_are_barred_elsewhere_and_certain_in_their_places():
    every = torch.zeros(1, 14, 9)
    positions = torch.arange(14)[None]
    target = SimpleNamespace(barred=barred_codes(3, 9), logits=lambda hidden: hidden)
    logits = code_logits(target, every, 1.0, positions)
    p = logits.softmax(-1)[0]
    for position, law in enumerate(p):
        alone = [0.0] * 8 + [1.0] if position % 4 == 3 else [1 / 8] * 8 + [0.0]
        assert law.tolist() == pytest.approx(alone)
    assert forced_codes(target).tolist() == [-1, -1, -1, 8]


# ---- EAGLE drafters: published layout and conventions, round trip, refusals ----------------------

CODES = [3, 9, 0]


@pytest.fixture(scope="module")
def lumina(folder):
    return C.lumina(folder)


def write(folder, tensors: dict[str, torch.Tensor], pickled: bool = True, **config: Any) -> str:
    """The published layout: pytorch_model.bin, config.json where the release has one."""
    folder.mkdir(parents=True, exist_ok=True)
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text("{}")
        C.change_config(folder, **config)
    return str(folder)


def drafter_of(source: str, model: Any) -> EagleNet:
    return load_eagle(source, model)[0]


def reference_logits(
    hf: Any, layer: Any, file: dict[str, torch.Tensor], ids: list[int]
) -> torch.Tensor:
    """Logits of the code after `ids`, drafted in one pass over an unpadded row: state i stands with
    token i + 1, positions count from the row's first token."""
    states = C.hf_states(hf, ids)[:-1]
    embedded = file["embed_tokens.weight"][ids[1:]]
    x = torch.cat([embedded, states], -1) @ file["fc.weight"].T + file["fc.bias"]
    positions = torch.arange(len(x))[None]
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    rope = hf.model.rotary_emb(x[None], positions)
    out = layer(x[None], attention_mask=mask, position_embeddings=rope)
    out = out[0] if isinstance(out, tuple) else out
    return hf.lm_head(out[0, -1])


CONFIG = {"hidden_size": C.WIDTH, "num_attention_heads": C.HEADS, "num_hidden_layers": 1}


@pytest.mark.parametrize(("pickled", "config"), [(True, {}), (False, CONFIG)])
def test_the_drafter_follows_the_released_decoding_code(hf, lumina, tmp_path, pickled, config):
    layer, file = published(hf)
    text = lumina.text.encode(["a red fox", "snow"])
    codes = torch.tensor([CODES] * 2)
    sampling = Sampling(cfg=3.0)
    with torch.inference_mode():
        states, _ = through_cache(lumina, text, codes)  # [4, P + 3, D]
        prefill = prefilled(lumina, text, states[:, : C.PREFIX], sampling)
        session = Eagle(lumina, write(tmp_path, file, pickled, **config)).begin(prefill, 3, 1)
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


def test_round_trip(hf, lumina, tmp_path):
    _, file = published(hf)
    net = drafter_of(write(tmp_path / "published", file), lumina)
    digest = save_eagle(net, tmp_path / "ours", torch.float32)
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == file.keys() and len(digest) == 64
    for name, values in file.items():
        assert torch.equal(values, written[name]), name
    del file["embed_tokens.weight"]  # a missing one is the target's
    for again in (
        drafter_of(str(tmp_path / "ours"), lumina),
        drafter_of(write(tmp_path / "part", file), lumina),
    ):
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
        ({}, {EMBED: torch.zeros(24, C.WIDTH)}, "vocabulary: drafter 24, target 80"),
        ({"num_attention_heads": 8}, {}, "does config.json belong"),
    ],
)
def test_other_drafters_are_refused(hf, lumina, tmp_path, config, tensors, message):
    with pytest.raises(DecoderError, match=message):
        drafter_of(write(tmp_path, published(hf)[1] | tensors, **config), lumina)
