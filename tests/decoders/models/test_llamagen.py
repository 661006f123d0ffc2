"""Released LlamaGen and EAGLE layouts load, agree with a reference in float64, and decode.

The reference is written from the formulas of METHODS around transformers' Llama layer, and shares
nothing with the code under test.
"""

import hashlib
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer

from decoders.api import DecoderError, Sampling, TextFeatures
from decoders.models.llamagen import LabelEncoder, load
from decoders.propose.drafters.eagle import Eagle, net_of
from decoders.verify.lantern import Lantern
from tests import checkpoints as K
from tests.decoders.compositions import prefilled, through_cache

WIDTH, HEADS, GRID, PREFIX = K.LITTLE.width, K.LITTLE.heads, K.LITTLE.grid, K.LITTLE.prefix
VALID = [False, False, True, True, True, True]
CODES = [3, 17, 0, 9, 23, 5, 5]
TARGET = {name: x.double() for name, x in K.hub_names(K.llamagen()).items()}
DRAFTER = {name: x.double() for name, x in K.drafter_tensors().items()}

# ---- the reference ------------------------------------------------------------------------------


def norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def through_layer(
    x: Tensor, weights: dict[str, Tensor], at: str, positions: list[int], seen: Tensor
) -> Tensor:
    """x [T, D], seen [T, T] bool. Of queries and keys, pair (2i, 2i + 1) of the first half turns by
    row * f_i, of the second by column * f_i; where the position is -1, on the prefix, they
    vanish. transformers' pairs are (i, i + d / 2)."""
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=K.LITTLE.ffn, num_attention_heads=HEADS,
        rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    layer = LlamaDecoderLayer(config, 0).double()
    state = {name.removeprefix(at): w for name, w in weights.items() if name.startswith(at)}
    for name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
        state[name] = state[name].view(HEADS, -1, 2, WIDTH).transpose(1, 2).reshape(WIDTH, WIDTH)
    if "input_layernorm.weight" not in state:
        layer.input_layernorm = torch.nn.Identity()
    layer.load_state_dict(state)
    quarter = WIDTH // HEADS // 4
    rate = 10000.0 ** (-torch.arange(quarter).double() / quarter)
    place = torch.tensor(positions)[:, None]  # [T, 1]
    angle = torch.cat([place // GRID * rate, place % GRID * rate], 1).repeat(1, 2)  # [T, d]
    rope = [(f(angle) * (place >= 0))[None] for f in (torch.cos, torch.sin)]
    mask = torch.zeros(seen.shape).double().masked_fill(~seen, -math.inf)[None, None]
    with torch.no_grad():
        out = layer(x[None], attention_mask=mask, position_embeddings=rope)
    return (out[0] if isinstance(out, tuple) else out).view_as(x)


def reference_states(
    features: Tensor, valid: list[bool], codes: list[int], conditional: bool
) -> Tensor:
    """Normed states [P + T, D] float64 of one row of the target. As in the released float32 code, a
    padded query sees all up to itself and the whole caption."""
    prefix = features.double() * torch.tensor(valid)[:, None]
    if not conditional:
        prefix = TARGET["model.cls_embedding.uncond_embedding"]
    h = prefix @ TARGET["model.cls_embedding.cap_proj.fc1.weight"].T
    gelu = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    x = torch.cat([
        gelu @ TARGET["model.cls_embedding.cap_proj.fc2.weight"].T,
        TARGET["model.embed_tokens.weight"][codes],
    ])  # fmt: skip
    there = torch.tensor([*valid, *[True] * len(codes)])
    caption = there & (torch.arange(len(x)) < len(valid))
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    seen = torch.where(there[:, None], causal & there, causal | caption)
    positions = [-1] * PREFIX + list(range(len(codes)))
    for n in range(K.LITTLE.layers):
        x = through_layer(x, TARGET, f"model.layers.{n}.", positions, seen)
    return norm(x) * TARGET["model.norm.weight"]


def reference_logits(states: Tensor) -> Tensor:
    return states @ TARGET["lm_head.weight"].T


def reference_draft(states: Tensor, codes: list[int]) -> Tensor:
    """The released drafter's feature after the last of `codes`, [D] float64: it reads the states
    0..P - 1 + len(codes) - 1 with P - 1 zeros and then the codes, and has no padding mask."""
    ids = [0] * (PREFIX - 1) + codes
    x = torch.cat([DRAFTER["embed_tokens.weight"][ids], states[: len(ids)]], 1)
    x = x @ DRAFTER["fc.weight"].T + DRAFTER["fc.bias"]
    positions = [-1] * (PREFIX - 1) + list(range(len(codes)))
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    return through_layer(x, DRAFTER, "layers.0.", positions, causal)[-1]


def hub(folder):
    """A model of the hub conversion's layout."""
    return load(dtype="float32", checkpoint=str(K.write_llamagen(folder / "m")))


def features(batch: int = 2) -> TextFeatures:
    x = torch.randn(batch, PREFIX, K.LITTLE.text, generator=torch.Generator().manual_seed(7))
    mask = torch.tensor([VALID] * batch)
    mask[1:, 2] = False
    return TextFeatures(x * mask[..., None], mask)


LAYOUTS = {
    "safetensors": lambda d: K.write_llamagen(d / "m"),
    "sharded": lambda d: K.write_llamagen(d / "m", shards=3),
    "bin": lambda d: K.write_llamagen(d / "m", pickled=True),
    "sharded bin": lambda d: K.write_llamagen(d / "m", shards=2, pickled=True),
    "original": lambda d: K.write_original(d / "t2i.pt", K.llamagen()),
    "original, wrapped": lambda d: K.write_original(
        d / "t2i.pt", {"model": K.llamagen(), "steps": 3}
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_every_layout_agree_with_the_float64_reference(tmp_path, layout):
    path = LAYOUTS[layout](tmp_path)
    model = load(dtype="float32", checkpoint=str(path), grid=GRID)
    text = features()
    with torch.inference_mode():
        states, _ = through_cache(model, text, torch.tensor([CODES] * 2))
        ours = model.target.logits(states)  # [2 B, P + T, V]
    for file in model.weights_sha256:
        content = ((path if path.is_dir() else path.parent) / file).read_bytes()
        assert model.weights_sha256[file] == hashlib.sha256(content).hexdigest()
    for b in range(2):
        valid = text.mask[b].tolist()
        for row, conditional in ((b, True), (2 + b, False)):
            states = reference_states(text.features[b], valid, CODES, conditional)
            theirs = reference_logits(states)
            torch.testing.assert_close(ours[row].double(), theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_the_drafter_reads_the_released_conventions(tmp_path, file):
    drafter = K.write_drafter(tmp_path / "d", pickled=file.endswith("bin"))
    model = hub(tmp_path)
    text = features(1)
    with torch.inference_mode():
        states, _ = through_cache(model, text, torch.tensor([CODES[:3]]))
        eagle = Eagle(model, str(drafter))
        prefill = prefilled(model, text, states[:, :PREFIX], Sampling(cfg=3.0))
        session = eagle.begin(prefill, 3, 1)
        one = torch.ones(1, dtype=torch.long)
        codes = torch.tensor([CODES[:3]])
        got = session.advance(states[:, PREFIX - 1 : -1], codes, 3 * one, 0 * one)  # [1, V]
    logits = []
    for conditional in (True, False):
        theirs = reference_states(text.features[0], VALID, CODES[:3], conditional)
        logits.append(reference_logits(reference_draft(theirs, CODES[:3])[None])[0])
    expected = logits[1] + 3.0 * (logits[0] - logits[1])
    torch.testing.assert_close(got[0].double(), expected, atol=2e-4, rtol=1e-3)
    assert f"{drafter}/{file}" in model.weights_sha256


def test_a_missing_embedding_is_the_targets_and_a_missing_bias_is_zero(tmp_path):
    model = hub(tmp_path)
    bare = net_of(model, str(K.write_drafter(tmp_path / "d", without="embed_tokens.weight")))
    assert torch.equal(bare.embed_tokens.weight, model.target.tok_embeddings.weight)
    unbiased = net_of(model, str(K.write_drafter(tmp_path / "e", without="fc.bias")))
    assert not unbiased.fc.bias.any()
    full = net_of(model, str(K.write_drafter(tmp_path / "f")))
    assert torch.equal(full.embed_tokens.weight, K.drafter_tensors()["embed_tokens.weight"])


def test_without_a_tokenizer_codes_are_had_and_pictures_say_what_is_missing(tmp_path, caplog):
    model = hub(tmp_path)
    assert "no LlamaGen VQ tokenizer" in caplog.text
    with pytest.raises(DecoderError, match=r"pictures need the VQ tokenizer.*vq_ds16_t2i\.pt"):
        model.tokenizer.decode(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(DecoderError, match="neighbours of codes need the VQ tokenizer"):
        Lantern(model)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    whole, torn = K.write_llamagen(tmp_path / "m"), K.write_llamagen(tmp_path / "torn", shards=3)
    (torn / "model-00002-of-00003.safetensors").unlink()
    lost = K.write_llamagen(tmp_path / "lost")
    tensors = {k: v.contiguous() for k, v in K.hub_names(K.llamagen()).items()}
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors | {"surprise": torch.zeros(1)}, lost / "model.safetensors")
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(2)}, other)
    (tmp_path / "empty").mkdir()
    odd = tmp_path / "t2i.pt"  # of a width that was not released, without a config.json
    torch.save(K.llamagen(), odd)
    for path, settings, says in (
        (torn, {}, r"lacks 1 of the 3 shards"),
        (lost, {}, r"missing model\.layers\.1\.mlp\.up_proj\.weight; unexpected surprise"),
        (other, {}, "is no LlamaGen checkpoint"),
        (tmp_path / "empty", {}, "found nothing"),
        (odd, {"grid": GRID}, r"width 32.*num_attention_heads"),
        (whole, {"grid": 16}, r"4 x 4 codes .*contradicts model\.grid=16"),
    ):  # fmt: skip
        with pytest.raises(DecoderError, match=says):
            load(checkpoint=str(path), **settings)
    assert load(checkpoint=str(whole), grid=GRID).target.length == GRID**2


def test_labels():
    text = LabelEncoder(1000).encode(["207", " 0 ", "999"])
    assert text.features.tolist() == [[207], [0], [999]] and text.features.dtype == torch.int64
    assert text.mask.all() and text.mask.shape == (3, 1)
    for bad in ("1000", "-1", "cat", "", "1.5", "²"):
        with pytest.raises(DecoderError, match="from 0 to 999"):
            LabelEncoder(1000).encode(["1", bad])
    with pytest.raises(DecoderError, match="no prompts"):
        LabelEncoder().encode([])
