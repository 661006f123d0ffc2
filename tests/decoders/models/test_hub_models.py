"""Checkpoints of the hub load and agree with transformers: logits, prompts, pictures, codes of
pictures. Row ends stand in their positions whatever decodes."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.distribution import code_logits
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.zipar import forced_codes
from decoders.models.nets.shape import barred_codes
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from tests import checkpoints as K
from tests.decoders.compositions import drafting, images, through_cache

PROMPTS = ["a red fox", "snow"]
ROW_ENDS = ("lumina", "emu3")


def some_codes(kind: str) -> Tensor:
    side, codes = K.GRID[K.family(kind)], K.CODES[K.family(kind)]
    drawn = torch.randint(codes, (2, side, side), generator=torch.Generator().manual_seed(2))
    if kind in ROW_ENDS:
        drawn = torch.nn.functional.pad(drawn, (0, 1), value=codes)
    return drawn.flatten(1)


def prompt_ids(text: Any, row: int, conditional: bool) -> list[int]:
    """A row's tokens without its padding."""
    ids, mask = (text.features, text.mask) if conditional else (text.uncond, text.uncond_mask)
    return ids[row][mask[row]].tolist()


def hf_logits(model: Any, kind: str, ids: list[int], codes: list[int]) -> Tensor:
    """[T, V] of one unpadded prompt and the codes after it (a row end is the last code)."""
    if kind == "janus":
        embed = model.get_input_embeddings()(torch.tensor([ids]))
        drawn = model.prepare_embeddings_for_image_generation(
            torch.tensor([codes], dtype=torch.long)
        )
        states = model.model.language_model(inputs_embeds=torch.cat([embed, drawn], 1))
        return model.model.generation_head(states.last_hidden_state)[0]
    tokens = K.tokens_of_codes(K.family(kind))
    tokens = tokens[:-1] if kind == "anole" else tokens
    states = model.model(input_ids=torch.tensor([ids + [tokens[code] for code in codes]]))
    return model.lm_head(states.last_hidden_state[0])[:, tokens]


@pytest.mark.parametrize("kind", K.LOADERS)
def test_logits_agree_with_transformers(theirs, folders, kind):
    """In decoding, and in training, where attention is PyTorch's fused operator, as on a GPU."""
    model, codes = K.load(kind, folders[kind]), some_codes(kind)
    text = model.text.encode(PROMPTS)
    drop = torch.tensor([False, True])
    with torch.inference_mode():
        states, _ = through_cache(model, text, codes[:, :-1])
        ours = model.target.logits(states[:, K.PREFIX - 1 :])
    model.target.requires_grad_(True)
    trained = model.target.logits(model.target(text, codes, drop)).detach()  # [2, L, V]
    assert ours.shape[1] == model.target.length == codes.shape[1]
    for row in range(4):
        b, conditional = row % 2, row < 2
        ids = prompt_ids(text, b, conditional)
        hf = theirs[K.family(kind)]
        right = hf_logits(hf, kind, ids, codes[b, :-1].tolist())[len(ids) - 1 :]
        assert float(right.std()) > 0.1
        torch.testing.assert_close(ours[row], right, atol=1e-4, rtol=1e-4)
        if bool(drop[b]) != conditional:
            torch.testing.assert_close(trained[b], right, atol=1e-4, rtol=1e-4)


def test_unconditional_prompts(folders):
    text = K.load("janus", folders["janus"]).text
    made, names = text.encode(["a red fox"]), K.vocabulary("janus")
    before, after, pad = (names[name] for name in K.SPECIAL["janus"][1:])
    row = prompt_ids(made, 0, False)
    assert row == [before, *[pad] * (len(row) - 2), after]
    assert torch.equal(made.mask, made.uncond_mask)
    text = K.load("emu3", folders["emu3"]).text
    made, names = text.encode(["a red fox"]), K.vocabulary("emu3")
    tail = [names[n] for n in ("<|image start|>", "3", "*", "3", "<|image token|>")]
    for conditional in (True, False):
        row = prompt_ids(made, 0, conditional)
        assert row[0] == names["<|extra_203|>"] and row[-5:] == tail
        assert (names["fox"] in row) == conditional and (names["lowres"] in row) != conditional


def test_heads_that_share_one_norm_load_alike(folders, tmp_path):
    """Older conversions (Lumina-mGPT, Anole) store one scale for all heads, [1, d] or [d]."""
    shared, names = K.hf_model("chameleon"), K.vocabulary("chameleon")
    for layer in shared.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            for values in norm.parameters():
                values.data[:] = values.data[:1].clone()
    for name in ("new", "old"):
        K.write_hf(tmp_path / name, shared, names)

    def once(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        norms = [n for n in tensors if ".q_norm." in n or ".k_norm." in n]
        return tensors | {
            n: (tensors[n][0] if ".layers.0." in n else tensors[n][:1]).clone() for n in norms
        }

    K.change_tensors(tmp_path / "old", once)
    new, old = (K.load("anole", tmp_path / name).target.state_dict() for name in ("new", "old"))
    assert new.keys() == old.keys()
    assert all(torch.equal(new[name], old[name]) for name in new)
    other = K.load("anole", folders["anole"]).target.layers[0].attention.qk_norm.weight
    assert not torch.equal(other[0], other[1])  # by head, where they are given by head


# ---- row ends -----------------------------------------------------------------------------------

GRID, CODES = K.GRID["chameleon"], K.CODES["chameleon"]


DRAFTS: dict[str, Any] = {  # trees, and rules of a model
    "chain": (Chain(depth=3), lambda _: Exact()),
    "released": (Chain(depth=3), lambda m: Lantern(m, k=6, delta=0.4, residual="released")),
    "eagle1": (Static(choices="binary_8"), lambda m: LanternPP(m, k=6, lam=4.0)),
    "eagle2": (Dynamic(depth=3, top_k=3, nodes=8), lambda m: Lantern(m, k=6, delta=0.4)),
}


@pytest.mark.parametrize("name", ["ar", *DRAFTS])
def test_row_ends_stand_in_their_positions(folders, name):
    model, sampling = K.load("lumina", folders["lumina"]), Sampling(cfg=2.0, top_k=8)
    decoder: Any = Autoregressive(model, sampling)
    if name in DRAFTS:
        tree, rule = DRAFTS[name]
        eagle = Eagle(model, str(folders["lumina"] / "drafter"))
        decoder = drafting(model, eagle, tree, rule(model), sampling)
    made = images(decoder, ["a red fox", "a fox in the snow", "snow", "fox"])
    rows = made.codes.view(4, GRID, GRID + 1)
    assert (rows[:, :, -1] == CODES).all()
    assert (rows[:, :, :-1] < CODES).all()
    assert (made.trace.tv_shift <= made.trace.bound + 1e-6).all()
    assert model.tokenizer.decode(made.codes).shape == (4, 3, 2 * GRID, 2 * GRID)


def test_structural_codes_are_barred_elsewhere_and_certain_in_their_positions():
    target = SimpleNamespace(barred=barred_codes(3, 9), logits=lambda hidden: hidden)
    p = code_logits(target, torch.zeros(1, 14, 9), 1.0, torch.arange(14)[None]).softmax(-1)[0]
    for position, probs in enumerate(p):
        alone = [0.0] * 8 + [1.0] if position % 4 == 3 else [1 / 8] * 8 + [0.0]
        assert probs.tolist() == pytest.approx(alone)
    assert forced_codes(target).tolist() == [-1, -1, -1, 8]


# ---- what is refused ----------------------------------------------------------------------------

NAMES = K.vocabulary("chameleon")
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "janus shares keys": ("janus", {"num_key_value_heads": 2}, "cannot be read"),
    "janus layers": ("janus", {"num_hidden_layers": 1}, "unexpected .*layers.1"),
    "emu3 positions": ("emu3", {"max_position_embeddings": 50}, "more than the model's 50"),
    "anole rotation": ("anole", {"rope_scaling": {"type": "linear"}}, "a scaled rotation"),
    "anole activation": ("anole", {"hidden_act": "gelu"}, "another activation than silu"),
    "anole positions": ("anole", {"max_position_embeddings": 9}, "more than the model's 9"),
    "swin_norm": ("anole", {"swin_norm": True}, "swin_norm=true"),
    "anole shares keys": ("anole", {"num_key_value_heads": 2}, "heads that share keys and values"),
    "anole width": ("anole", {"hidden_size": 64}, "does config.json belong"),
    "anole tokens": ("anole", {"vocab_size": 18}, "config.json has vocab_size 18"),
    "anole codes": (
        "anole", {"vocabulary_map": {k: v for k, v in NAMES.items() if k != "IMGIMGCZ"}},
        "from 0 on, found 15",
    ),
    "lumina row end": ("lumina", {"vocabulary_map": {"IMGIMGAZ": 4}}, "and <reserved08799>"),
}  # fmt: skip


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
        K.load(kind, tmp_path)


@pytest.mark.parametrize("kind", ["janus", "anole"])
def test_a_grid_that_contradicts_the_checkpoint_is_refused(folders, kind):
    with pytest.raises(DecoderError, match=r"4 x .* contradicts model\.grid=8"):
        K.load(kind, folders[kind], grid=8)
