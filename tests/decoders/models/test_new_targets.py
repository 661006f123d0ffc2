"""The target of docs/new_target.md is decoded by every kind of decoder on a small checkpoint, and
GPT-2 has its own forward. What cannot be a target is refused."""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bench.config.compose import compose_study
from bench.config.schema import variants
from bench.run.contender import load_model
from decoders.api import DecoderError, ImageModel, Sampling
from decoders.compose import build_decoder
from decoders.models import simplear
from decoders.models.causal_lm import CausalLM
from tests import checkpoints as K
from tests.bench.gate.targets import gpt2, gpt_model
from tests.decoders.compositions import Traced, images

PROMPTS = ["a red fox", "snow"]
ON = '"drafter=draft_model", "drafter.checkpoint=small", "tree.depth=2"'
CHAIN = f"{{decoder: sd_chain, name: chain, overrides: [{ON}]}}"
LANTERN = f'{{decoder: lantern_chain, name: lantern, overrides: [{ON}, "acceptance.k=4"]}}'
DECODERS = f"decoders=[ar,sjd,{CHAIN},{LANTERN}]"
STUDY = compose_study(["study=smoke", DECODERS, "proposer.window=4"])


def loaded(checkpoint: Path, *words: str) -> ImageModel:
    """SimpleAR by its YAML; words: settings."""
    side = f"model.grid={K.GRID['simplear']}"
    given = ["model=simplear_05b", f"model.checkpoint={checkpoint}", side, *words]
    study = compose_study([*given, "backend=cpu_torch", "backend.dtype=float32"])
    return load_model(study, torch.device("cpu"))


def write_simplear(folder: Path, **changes: Any) -> Path:
    return K.write_hf(folder, K.hf_model("simplear", **changes), K.vocabulary("simplear"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ImageModel:
    """On a small checkpoint, with a smaller one that drafts."""
    root = tmp_path_factory.mktemp("targets")
    own, less = (write_simplear(root / str(layers), num_hidden_layers=layers) for layers in (2, 1))
    pictures = f"model.tokenizer={K.write_cosmos(root / 'cosmos')}"
    return loaded(own, pictures, f"model.prefix={K.PREFIX}", f"+model.drafters.small={less}")


def codes_of(model: ImageModel, sampling: Sampling, names: Container[str]) -> dict[str, Any]:
    """What the study's decoders of these names make of the prompts."""
    return {
        one.name: images(build_decoder(model, one.entry.spec, sampling), PROMPTS)
        for one in variants(STUDY, model.sampling)
        if one.name in names
    }


def test_every_kind_of_decoder_runs_and_exact_ones_give_ars_codes(model: ImageModel) -> None:
    made = codes_of(model, Sampling(temperature=0, cfg=3.0), ["ar", "sjd", "chain"])
    ar = made["ar"].codes
    assert not torch.equal(ar[0], ar[1])
    for name in ("sjd", "chain"):
        assert torch.equal(made[name].codes, ar), name
    assert made["chain"].trace.drafter_calls.min() > 0
    drawn = codes_of(model, Sampling(cfg=2.0), ["lantern"])["lantern"]
    assert drawn.codes.max() < model.target.vocab_size
    assert (drawn.trace.tv_shift <= drawn.trace.bound + 1e-6).all()
    pictures = model.tokenizer.decode(drawn.codes)
    assert pictures.shape[:2] == (2, 3) and float(pictures.std()) > 0.01


def test_every_step_is_one_graph(model: ImageModel) -> None:
    greedy = Sampling(temperature=0, cfg=3.0)
    eager, compiled = (
        codes_of(replace(model, execution=how), greedy, ["sjd"]) for how in (None, Traced())
    )
    for name, made in compiled.items():
        assert torch.equal(made.codes, eager[name].codes), name
        assert set(made.trace.path.values()) == {"compiled"}, name


def test_a_target_of_ones_own_follows_its_models_own_forward():
    model: Any = gpt_model()
    text = model.text.encode(PROMPTS)
    codes = codes_of(model, Sampling(temperature=0, cfg=3.0), ["ar"])["ar"].codes  # [2, L]
    theirs = gpt2().eval()
    theirs.load_state_dict(model.target.model.state_dict())
    for row in range(2):
        prompts = text.features[row][text.mask[row]], text.uncond[row][text.uncond_mask[row]]
        for position in range(model.target.length):
            seen = codes[row, :position]
            cond, uncond = (
                theirs(input_ids=torch.cat([ids, seen])[None]).logits[0, -1] for ids in prompts
            )
            assert int((uncond + 3.0 * (cond - uncond)).argmax()) == int(codes[row, position])


# ---- what is refused ----------------------------------------------------------------------------


def qwen2(**changes: Any) -> Any:
    shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.Qwen2Config(**shape, num_attention_heads=2, **changes)
    return transformers.Qwen2ForCausalLM(config)


def cohere() -> Any:
    shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    return transformers.CohereForCausalLM(transformers.CohereConfig(**shape, num_attention_heads=2))


def mamba() -> Any:
    config = transformers.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1)
    return transformers.MambaForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gpt2(n_positions=40, vocab_size=40), "are more than the model's 40 positions"),
        (lambda: qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=0),
         "look at all 48 positions, found sliding_attention with a window of 8"),
        (lambda: gpt2(vocab_size=30), "a row for each token up to 39, found 30 rows"),
        (cohere, r"logits of a few codes differ by .* more than an embedding"),
        (mamba, "48 positions, found linear_attention"),
    ],
)  # fmt: skip
def test_what_is_no_causal_model_of_codes_is_refused(make, says):
    with pytest.raises(DecoderError, match=says):
        CausalLM(make(), range(24, 40), 4, 32)


def test_a_code_of_cosmos_is_a_point_of_a_grid(monkeypatch):
    monkeypatch.setattr(simplear, "AXIS_LEVELS", (8, 8, 8, 5, 5, 5))
    book = simplear.codebook()
    assert book.shape == (64000, 6) and len(book.unique(dim=0)) == 64000
    assert book[0].tolist() == [-1.0] * 6 and book[-1].tolist() == [0.75] * 3 + [1.0] * 3
    rest, digits = 12345, []
    for level in (8, 8, 8, 5, 5, 5):
        rest, digit = divmod(rest, level)
        digits.append((digit - level // 2) / (level // 2))
    assert book[12345].tolist() == digits


def test_weights_and_tokenizers_that_do_not_fit_are_refused(tmp_path):
    whole = write_simplear(tmp_path / "whole")
    bare = K.load("simplear", whole)
    assert not bare.draws and bare.codebook.shape == (K.CODES["simplear"], 3)
    (tmp_path / "decoder.jit").write_text("<html>")
    for path, says in ((tmp_path, "the TorchScript program"), (whole / "no", "expected a file")):
        with pytest.raises(DecoderError, match=says):
            K.load("simplear", whole, tokenizer=str(path))
    lost = "model.layers.1.mlp.up_proj.weight"
    K.change_tensors(whole, lambda t: {key: value for key, value in t.items() if key != lost})
    with pytest.raises(DecoderError, match=f"is no Qwen2ForCausalLM: missing {lost}"):
        K.load("simplear", whole)
    K.change_config(whole, num_hidden_layers=3)
    with pytest.raises(DecoderError, match="cannot be read"):
        K.load("simplear", whole)
