"""Checkpoints of the hub load and agree with transformers: logits and pictures."""

import json
from typing import Any

import pytest
import torch

from decoders.api import DecoderError
from decoders.models import chameleon, emu3, janus, simplear
from tests.decoders.compositions import through_cache
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models import llama_checkpoints as L
from tests.decoders.models.random_checkpoints.chameleon import write_checkpoint

PROMPTS = ["a red fox", "snow"]
LOADERS: dict[str, Any] = {
    "anole": chameleon.load_anole, "lumina": chameleon.load_lumina,
    "janus": janus.load, "emu3": emu3.load, "simplear": simplear.load,
}  # fmt: skip
ROW_ENDS = ("lumina", "emu3")
KINDS = ("janus", "emu3")
OWN = (*KINDS, "simplear")  # whose checkpoints are written here


@pytest.fixture(scope="module")
def theirs(hf):
    """transformers' model of every kind."""
    return {kind: L.hf_model(kind) for kind in OWN} | dict.fromkeys(("anole", "lumina"), hf)


@pytest.fixture(scope="module")
def folders(theirs, folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    made = {kind: write_checkpoint(root / kind, theirs[kind], L.vocabulary(kind)) for kind in OWN}
    return made | dict.fromkeys(("anole", "lumina"), folder)


@pytest.fixture(autouse=True)
def few_codes(monkeypatch):
    monkeypatch.setattr(simplear, "LEVELS", L.LEVELS)


def load(folder, kind: str, **options):
    settings = {"dtype": "float32", "grid": L.GRID[kind], "prefix": L.PREFIX, **options}
    return LOADERS[kind](checkpoint=str(folder), **settings)


def some_codes(kind: str) -> torch.Tensor:
    side, codes = L.GRID[kind], L.CODES[kind]
    drawn = torch.randint(codes, (2, side, side), generator=torch.Generator().manual_seed(2))
    if kind in ROW_ENDS:
        drawn = torch.nn.functional.pad(drawn, (0, 1), value=codes)
    return drawn.flatten(1)


@pytest.mark.parametrize("kind", LOADERS)
def test_logits_agree_with_transformers(theirs, folders, kind):
    """In decoding, and in training, where attention is PyTorch's fused operator, as on a GPU."""
    model, codes = load(folders[kind], kind), some_codes(kind)
    text = model.text.encode(PROMPTS)
    drop = torch.tensor([False, True])
    with torch.inference_mode():
        states, _ = through_cache(model, text, codes[:, :-1])
        ours = model.target.logits(states[:, L.PREFIX - 1 :])
    model.target.requires_grad_(True)
    trained = model.target.logits(model.target(text, codes, drop)).detach()  # [2, L, V]
    assert ours.shape[1] == model.target.length == codes.shape[1]
    for row in range(4):
        b, conditional = row % 2, row < 2
        ids = C.prompt_ids(text, b, conditional)
        right = L.hf_logits(theirs[kind], kind, ids, codes[b, :-1].tolist())[len(ids) - 1 :]
        assert float(right.std()) > 0.1
        torch.testing.assert_close(ours[row], right, atol=1e-4, rtol=1e-4)
        if bool(drop[b]) != conditional:
            torch.testing.assert_close(trained[b], right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_agree_with_transformers(theirs, folders, kind):
    model, codes = load(folders[kind], kind), some_codes(kind)
    ours = model.tokenizer.decode(codes)
    side = L.GRID[kind]
    drawn = codes.view(2, side, side + 1)[:, :, :-1] if kind in ROW_ENDS else codes
    expected = (theirs[kind].model.vqmodel.decode(drawn) * 0.5 + 0.5).clamp(0, 1)
    assert ours.shape == (2, 3, 2 * side, 2 * side) and float(ours.std()) > 0.02
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


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


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "janus shares keys": ("janus", {"num_key_value_heads": 2}, "cannot be read"),
    "janus layers": ("janus", {"num_hidden_layers": 1}, "unexpected .*layers.1"),
    "emu3 positions": (
        "emu3",
        {"max_position_embeddings": 50},
        "more than the model's 50 positions",
    ),
    "anole rotation": ("anole", {"rope_scaling": {"type": "linear"}}, "a scaled rotation"),
    "anole activation": ("anole", {"hidden_act": "gelu"}, "another activation than silu"),
    "anole positions": (
        "anole",
        {"max_position_embeddings": 9},
        "more than the model's 9 positions",
    ),
    "swin_norm": ("anole", {"swin_norm": True}, "swin_norm=true"),
    "anole shares keys": ("anole", {"num_key_value_heads": 2}, "heads that share keys and values"),
    "anole width": ("anole", {"hidden_size": 64}, "does config.json belong"),
    "anole tokens": ("anole", {"vocab_size": 18}, "config.json has vocab_size 18"),
    "anole codes": (
        "anole",
        {"vocabulary_map": {k: v for k, v in C.vocabulary().items() if k != "IMGIMGCZ"}},
        "from 0 on, found 15",
    ),
    "lumina row end": ("lumina", {"vocabulary_map": {"IMGIMGAZ": 4}}, "and <reserved08799>"),
}


@pytest.mark.parametrize("kind", ["janus", "anole"])
def test_a_grid_that_contradicts_the_checkpoint_is_refused(folders, kind):
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
