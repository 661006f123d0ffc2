"""Checkpoints of the hub load and agree with transformers: logits, greedy codes, pictures."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from decoders.api import DecoderError, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models import families, simplear
from decoders.models.causal_lm import CausalLM
from decoders.models.checkpoint import Checkpoint
from decoders.models.eagle_net import ChameleonEagleNet
from decoders.models.hub import config_of
from decoders.models.vq import cosmos_vq
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.drafters.eagle_checkpoint import save_eagle
from decoders.propose.tree_proposer import TreeProposer
from decoders.propose.trees.dynamic import Dynamic
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models import llama_checkpoints as L
from tests.decoders.models.made import simplear as S

PROMPTS = ["a red fox", "snow"]
LOADERS: dict[str, Any] = {
    "anole": families.load_anole, "lumina": families.load_lumina,
    "janus": families.load_janus, "emu3": families.load_emu3, "simplear": simplear.load,
}  # fmt: skip
ROW_ENDS = ("lumina", "emu3")
KINDS = ("janus", "emu3")


@pytest.fixture(scope="module")
def theirs(hf):
    """transformers' model of every kind."""
    made = {kind: L.hf_model(kind) for kind in KINDS} | {"simplear": S.hf_model(C.WORDS)}
    return made | dict.fromkeys(("anole", "lumina"), hf)


@pytest.fixture(scope="module")
def folders(theirs, folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    made = {kind: L.write_checkpoint(root / kind, theirs[kind], kind) for kind in KINDS}
    made["simplear"] = S.write_checkpoint(root / "simplear", theirs["simplear"], C.WORDS)
    return made | dict.fromkeys(("anole", "lumina"), folder)


@pytest.fixture(params=[*LOADERS, *(f"{kind}, its class as it is" for kind in KINDS)])
def pair(request, theirs, folders, monkeypatch) -> tuple[str, Any]:
    """A kind, and its model, whose target may be a `CausalLM` around transformers' class."""
    monkeypatch.setattr(cosmos_vq, "LEVELS", S.LEVELS)
    kind, _, adapted = request.param.partition(",")
    model = load(folders[kind], kind)
    if adapted:
        own = deepcopy(theirs[kind])
        tokens, codes = range(L.CODES[kind]), dict[str, Any]()
        if kind == "janus":
            embed = nn.Sequential(own.model.generation_embeddings, own.model.generation_aligner)
            codes = {"embed": embed, "head": own.model.generation_head}
        else:
            tokens = L.tokens_of_codes()
        target = CausalLM(own, tokens, L.GRID[kind], L.PREFIX, kind in ROW_ENDS, **codes)
        model = replace(model, target=target)
    return kind, model


def load(folder, kind: str, **options):
    settings = {"dtype": "float32", "grid": L.GRID[kind], "prefix": L.PREFIX, **options}
    return LOADERS[kind](checkpoint=str(folder), **settings)


def some_codes(kind: str) -> torch.Tensor:
    side, codes = L.GRID[kind], L.CODES[kind]
    drawn = torch.randint(codes, (2, side, side), generator=torch.Generator().manual_seed(2))
    if kind in ROW_ENDS:
        drawn = torch.nn.functional.pad(drawn, (0, 1), value=codes)
    return drawn.flatten(1)


def test_logits_agree_with_transformers(theirs, pair):
    kind, model = pair
    codes = some_codes(kind)
    text = model.text.encode(PROMPTS)
    drop = torch.tensor([False, True])
    with torch.inference_mode():
        ours = model.target.logits(C.our_states(model, text, codes[:, :-1]))[:, L.PREFIX - 1 :]
        trained = model.target.logits(model.target(text, codes, drop))  # [2, L, V]
    assert ours.shape[1] == model.target.length == codes.shape[1]
    for row in range(4):
        b, conditional = row % 2, row < 2
        ids = C.prompt_ids(text, b, conditional)
        right = L.hf_logits(theirs[kind], kind, ids, codes[b, :-1].tolist())[len(ids) - 1 :]
        assert float(right.std()) > 0.1
        torch.testing.assert_close(ours[row], right, atol=1e-4, rtol=1e-4)
        if bool(drop[b]) != conditional:
            torch.testing.assert_close(trained[b], right, atol=1e-4, rtol=1e-4)


def plain_loop(hf: Any, kind: str, text: Any) -> list[int]:
    """Greedy codes of the first prompt by a plain loop over transformers, without a cache."""
    side, count = L.GRID[kind], L.CODES[kind]
    codes: list[int] = []
    for place in range(side * (side + (kind in ROW_ENDS))):
        if kind in ROW_ENDS and place % (side + 1) == side:
            codes.append(count)
            continue
        cond, uncond = (
            L.hf_logits(hf, kind, C.prompt_ids(text, 0, given), codes)[-1, :count]
            for given in (True, False)
        )
        codes.append(int((uncond + 3.0 * (cond - uncond)).argmax()))
    return codes


def greedy_codes(model: Any, text: Any) -> list[int]:
    noise = Noise.for_prompts(0, PROMPTS, model.target.length)
    made = Autoregressive(model, Sampling(temperature=0, cfg=3.0)).generate(text, noise)
    return made.codes[0].tolist()


def test_greedy_codes_equal_a_plain_loop_over_transformers(theirs, pair):
    kind, model = pair
    text = model.text.encode(PROMPTS)
    assert greedy_codes(model, text) == plain_loop(theirs[kind], kind, text)


def test_chameleons_heads_that_share_keys_agree_with_transformers(tmp_path):
    shared = C.hf_model(num_key_value_heads=2)
    model = load(C.write_checkpoint(tmp_path, shared), "anole")
    assert model.target.cfg.group == C.HEADS // 2
    text = model.text.encode(PROMPTS)
    assert greedy_codes(model, text) == plain_loop(shared, "anole", text)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_agree_with_transformers(theirs, folders, kind):
    model, codes = load(folders[kind], kind), some_codes(kind)
    ours = model.tokenizer.decode(codes)
    side = L.GRID[kind]
    if kind == "janus":
        made = theirs[kind].model.vqmodel.decode(codes)
    else:
        grid = codes.view(2, side, side + 1)[:, :, :-1]
        made = theirs[kind].model.vqmodel.decode(grid)
    expected = (made * 0.5 + 0.5).clamp(0, 1)
    assert ours.shape == (2, 3, 2 * side, 2 * side) and float(ours.std()) > 0.02
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_greedy_speculative_codes_equal_ar_on_shared_heads(folders, tmp_path):
    model = load(folders["emu3"], "emu3")
    sampling = Sampling(temperature=0, cfg=3.0)
    text = model.text.encode(PROMPTS)
    noise = Noise.for_prompts(0, PROMPTS, model.target.length)
    ar = Autoregressive(model, sampling).generate(text, noise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        net = ChameleonEagleNet(replace(model.target.cfg, layers=1)).eval().requires_grad_(False)
    net.code_tokens = model.target.code_tokens
    save_eagle(net, tmp_path, torch.float32)
    given = json.loads((tmp_path / "config.json").read_text())
    assert given["num_key_value_heads"] == 2
    eagle = Eagle(model, str(tmp_path))
    for name, values in net.state_dict().items():
        assert torch.equal(values, eagle.net.state_dict()[name]), name
    grown = TreeProposer(eagle, Dynamic(depth=3, top_k=3, nodes=8))
    made = Speculative(model, sampling, grown, TokenVerifier(Exact())).generate(text, noise)
    assert torch.equal(ar.codes, made.codes)


def test_sizes_that_the_hub_leaves_out_are_transformers_own():
    """The text_config of Emu3-Gen-hf and the language_config of DeepSeek's Janus-Pro-7B."""
    published = {"model_type": "emu3_text_model", "rope_scaling": {"rope_type": "default"}}
    opened = Checkpoint(Path("emu3"), {"text_config": published}, {})
    usual = transformers.Emu3TextConfig()
    found = config_of(families.EMU3, opened, 32769, 90, 160)
    assert (found.width, found.ffn, found.layers) == (
        usual.hidden_size, usual.intermediate_size, usual.num_hidden_layers,
    )  # fmt: skip
    assert (found.heads, found.kv_heads) == (usual.num_attention_heads, usual.num_key_value_heads)
    assert (found.tokens, found.norm_eps) == (usual.vocab_size, usual.rms_norm_eps)
    assert found.rope_base == usual.rope_parameters["rope_theta"]
    published = {
        "max_position_embeddings": 16384, "model_type": "llama", "num_hidden_layers": 30,
        "torch_dtype": "bfloat16", "vocab_size": 102400,
    }  # fmt: skip
    opened = Checkpoint(Path("janus"), {"language_config": published}, {})
    llama = transformers.LlamaConfig()
    found = config_of(families.JANUS, opened, 16384, 24, 128)
    assert (found.width, found.ffn, found.layers) == (
        llama.hidden_size, llama.intermediate_size, 30,
    )  # fmt: skip
    assert (found.heads, found.group) == (llama.num_attention_heads, 1)
    assert (found.norm_eps, found.tokens) == (llama.rms_norm_eps, 102400 + 16384)
    assert found.rope_base == llama.rope_parameters["rope_theta"]
    with pytest.raises(DecoderError, match="must say hidden_size"):
        config_of(families.EMU3, Checkpoint(Path("emu3"), {}, {}), 32769, 90, 160)


def test_unconditional_prompts(folders):
    text = load(folders["janus"], "janus").text
    made, names = text.encode(["a red fox"]), L.vocabulary("janus")
    before, after, pad = (names[name] for name in L.SPECIAL["janus"][1:])
    row = C.prompt_ids(made, 0, False)
    assert row == [before, *[pad] * (len(row) - 2), after]
    assert torch.equal(made.mask, made.uncond_mask)
    text = load(folders["emu3"], "emu3").text
    made, names = text.encode(["a red fox"]), L.vocabulary("emu3")
    tail = [names[n] for n in ("<|image start|>", "3", "*", "3", "<|image token|>")]
    for conditional in (True, False):
        row = C.prompt_ids(made, 0, conditional)
        assert row[0] == names["<|extra_203|>"] and row[-5:] == tail
        assert (names["fox"] in row) == conditional and (names["lowres"] in row) != conditional


def same_model(kind: str, *places: Path) -> None:
    first, second = (load(place, kind) for place in places)
    for name, values in first.target.state_dict().items():
        assert torch.equal(values, second.target.state_dict()[name]), name
    codes = some_codes(kind)
    assert torch.equal(first.tokenizer.decode(codes), second.tokenizer.decode(codes))


def test_deepseeks_own_layout_is_the_same_model(folders, tmp_path):
    layouts = (families.TRANSFORMERS, families.DEEPSEEK)
    theirs, own = layouts
    pairs = [(theirs.words, own.words), (theirs.codes, own.codes)]
    pairs += [
        *zip(theirs.aligner, own.aligner, strict=True),
        *zip(theirs.head, own.head, strict=True),
    ]
    pairs.append((theirs.pictures.roots[0], own.pictures.roots[0]))
    made = {}
    for name, tensor in load_file(folders["janus"] / "model.safetensors").items():
        start = next(((a, b) for a, b in pairs if name.startswith(a)), None)
        if start is None:
            continue
        new = start[1] + name.removeprefix(start[0])
        if start[0] == theirs.pictures.roots[0]:
            new = re.sub(
                r"\.mid\.(block_1|attn_1|block_2)\.",
                lambda m: f".mid.{('block_1', 'attn_1', 'block_2').index(m[1])}.",
                new,
            )
            new = re.sub(r"\.(up|down)\.(\d)\.", r".conv_blocks.\2.", new)
            new = re.sub(r"\.block\.(\d)\.", r".res.\1.", new)
        made[new] = tensor
    save_file(made, tmp_path / "model.safetensors")
    given = json.loads((folders["janus"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"language_config": given["text_config"]}))
    (tmp_path / "tokenizer.json").write_text((folders["janus"] / "tokenizer.json").read_text())
    same_model("janus", folders["janus"], tmp_path)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "janus shares keys": ("janus", {"num_key_value_heads": 2}, "does config.json belong"),
    "janus layers": ("janus", {"num_hidden_layers": 1}, "unexpected .*layers.1"),
    "janus rotation": ("janus", {"rope_scaling": {"type": "linear"}}, "a scaled rotation"),
    "emu3 activation": ("emu3", {"hidden_act": "gelu"}, "another activation than silu"),
    "emu3 places": ("emu3", {"max_position_embeddings": 50}, "more than the model's 50 positions"),
    "emu3 heads": ("emu3", {"num_key_value_heads": 3}, "no multiple of those of keys"),
    "swin_norm": ("anole", {"swin_norm": True}, "swin_norm=true"),
    "anole shares keys": ("anole", {"num_key_value_heads": 2}, "does config.json belong"),
    "anole width": ("anole", {"hidden_size": 64}, "does config.json belong"),
    "anole tokens": ("anole", {"vocab_size": 18}, "config.json has vocab_size 18"),
    "anole codes": (
        "anole",
        {"vocabulary_map": {k: v for k, v in C.vocabulary().items() if k != "IMGIMGCZ"}},
        "from 0 on, found 15",
    ),
    "anole vocabulary": ("anole", {"vocabulary_map": {"IMGIMGAZ": 4}}, "has no <s>"),
}


SAYS_SIDE = {  # where config.json says that images are 6 x 6 codes
    "janus": {"vq_config": {"num_patches": 6}},
    "anole": {"vq_config": {"resolution": 24, "channel_multiplier": [1, 2, 4]}},
    "emu3": {"image_area": 48 * 48},
}


@pytest.mark.parametrize("kind", SAYS_SIDE)
def test_a_grid_that_contradicts_the_checkpoint_is_refused(folders, tmp_path, kind):
    for file in folders[kind].iterdir():
        (tmp_path / file.name).symlink_to(file)
    given = json.loads((folders[kind] / "config.json").read_text()) | SAYS_SIDE[kind]
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(DecoderError, match=r"6 x 6 codes \(.*contradicts model\.grid=\d.*grid=6"):
        load(tmp_path, kind)
    if kind != "emu3":  # as the checkpoints of these tests are
        with pytest.raises(DecoderError, match=rf"{L.GRID[kind]} x .* contradicts model\.grid=8"):
            load(folders[kind], kind, grid=8)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused(folders, tmp_path, case):
    kind, changes, message = REFUSED[case]
    for file in folders[kind].iterdir():
        (tmp_path / file.name).symlink_to(file)
    given = json.loads((folders[kind] / "config.json").read_text())
    given.get("text_config", given).update(changes)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(DecoderError, match=message):
        load(tmp_path, kind)
