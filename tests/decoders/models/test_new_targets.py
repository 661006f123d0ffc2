"""The target of docs/new_target.md, and a class of transformers that is nobody's: decoded by every
kind of decoder on small checkpoints. What cannot be a target is refused."""

from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bench.config.compose import compose_study
from bench.config.schema import variants
from bench.run.decoders import load_model
from decoders.api import DecoderError, ImageModel, Sampling
from decoders.compose import build_decoder
from decoders.models import simplear
from decoders.models.causal_lm import CausalLM
from decoders.models.loading.checkpoint import Checkpoint
from decoders.models.prompts import PromptEncoder, Template
from decoders.models.random_weights import RandomTokenizer
from tests.decoders.compositions import Traced, images
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models import llama_checkpoints as L
from tests.decoders.models.random_checkpoints.chameleon import (
    SHARP,
    randomise,
    write_checkpoint,
    write_tokenizer,
)

PROMPTS = ["a red fox", "snow"]
GRID, PREFIX, CODES = 4, 64, 16
ON = '"drafter=draft_model", "drafter.checkpoint=small", "tree.depth=2"'
CHAIN = f"{{decoder: sd_chain, name: chain, overrides: [{ON}]}}"
LANTERN = f'{{decoder: lantern_chain, name: lantern, overrides: [{ON}, "acceptance.k=4"]}}'
DECODERS = f"decoders=[ar,sjd,{CHAIN},{LANTERN}]"
STUDY = compose_study(["study=smoke", DECODERS, "proposer.window=4"])


def gpt2(**changes: Any) -> Any:
    """A model with learned positions, none of those that this project knows."""
    shape = {"vocab_size": 40, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
    made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**shape, **changes}))
    randomise(made.eval()).lm_head.weight.data *= SHARP
    return made


def own_model(folder: Path) -> ImageModel:
    """Its codes are the tokens 24 to 39."""
    words = {name: i for i, name in enumerate(["<unk>", "<s>", "<image>", *L.WORDS])}
    write_tokenizer(folder / "tokenizer.json", words)
    template = Template("{prompt}", ("<s>",), ("<image>",), uncond=("<s>", "<image>"))
    tokens, generator = range(24, 24 + CODES), torch.Generator().manual_seed(3)
    return ImageModel(
        name="own",
        target=CausalLM(gpt2(), tokens, GRID, PREFIX),
        text=PromptEncoder(Checkpoint(folder, {}, {}), template, PREFIX),
        tokenizer=RandomTokenizer(torch.randn(CODES, 3, generator=generator)),
        sampling=Sampling(cfg=3.0),
        device=torch.device("cpu"),
        dtype=torch.float32,
        weights_sha256={},
        drafters={"small": CausalLM(gpt2(n_layer=1), tokens, GRID, PREFIX)},
    )


def loaded(checkpoint: Path, *words: str) -> ImageModel:
    """SimpleAR by its YAML; words: settings."""
    given = ["model=simplear_05b", f"model.checkpoint={checkpoint}", f"model.grid={GRID}", *words]
    study = compose_study([*given, "backend=cpu_torch", "backend.dtype=float32"])
    return load_model(study, torch.device("cpu"))


def write_simplear(folder: Path, **changes: Any) -> Path:
    model = L.hf_model("simplear", **changes)
    return write_checkpoint(folder, model, L.vocabulary("simplear"))


def simplear_model(root: Path) -> ImageModel:
    """On a small checkpoint, with a smaller one that drafts."""
    own, less = (write_simplear(root / str(layers), num_hidden_layers=layers) for layers in (2, 1))
    pictures = f"model.tokenizer={L.write_decoder(root / 'cosmos')}"
    return loaded(own, pictures, f"model.prefix={PREFIX}", f"+model.drafters.small={less}")


@pytest.fixture(scope="module", params=["simplear", "own"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ImageModel:
    make = own_model if request.param == "own" else simplear_model
    return make(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="module", autouse=True)
def few_codes() -> Iterator[None]:
    """SimpleAR's 64,000 codes make 64,000 neighbours each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simplear, "LEVELS", L.LEVELS)
        yield


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
    if model.draws:
        pictures = model.tokenizer.decode(drawn.codes)
        assert pictures.shape[:2] == (2, 3) and float(pictures.std()) > 0.01


@pytest.mark.parametrize("model", ["own"], indirect=True)
def test_every_step_is_one_graph(model: ImageModel) -> None:
    greedy = Sampling(temperature=0, cfg=3.0)
    eager, compiled = (
        codes_of(replace(model, execution=how), greedy, ["chain"]) for how in (None, Traced())
    )
    for name, made in compiled.items():
        assert torch.equal(made.codes, eager[name].codes), name
        assert set(made.trace.path.values()) == {"compiled"}, name


def test_a_target_of_ones_own_follows_its_models_own_forward(tmp_path):
    model = own_model(tmp_path)
    text = model.text.encode(PROMPTS)
    codes = codes_of(model, Sampling(temperature=0, cfg=3.0), ["ar"])["ar"].codes  # [2, L]
    theirs = gpt2()
    for row in range(2):
        for place in range(model.target.length):
            seen = [24 + code for code in codes[row, :place].tolist()]
            cond, uncond = (
                theirs(input_ids=torch.tensor([C.prompt_ids(text, row, side) + seen])).logits[0, -1]
                for side in (True, False)
            )
            logits = (uncond + 3.0 * (cond - uncond))[24:]
            assert int(logits.argmax()) == int(codes[row, place])


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
        (lambda: gpt2(n_positions=40), "48 tokens together are more than the model's 40 positions"),
        (lambda: qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=0),
         "look at all 48 positions, found sliding_attention with a window of 8"),
        (lambda: gpt2(vocab_size=30), "a row for each token up to 39, found 30 rows"),
        (cohere, r"logits of a few codes differ by .* more than an embedding"),
        (mamba, "48 positions, found linear_attention"),
    ],
)  # fmt: skip
def test_what_is_no_causal_model_of_codes_is_refused(make, says):
    with pytest.raises(DecoderError, match=says):
        CausalLM(make(), range(24, 40), GRID, 32)


def test_a_code_of_cosmos_is_a_place_on_a_grid(monkeypatch):
    monkeypatch.setattr(simplear, "LEVELS", (8, 8, 8, 5, 5, 5))
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
    bare = loaded(whole, "model.tokenizer=null")
    assert not bare.draws and bare.codebook.shape == (L.CODES["simplear"], 3)
    (tmp_path / "decoder.jit").write_text("<html>")
    for place, says in ((tmp_path, "the TorchScript program"), (whole / "no", "expected a file")):
        with pytest.raises(DecoderError, match=says):
            loaded(whole, f"model.tokenizer={place}")
    lost = "model.layers.1.mlp.up_proj.weight"
    C.change_tensors(whole, lambda t: {key: value for key, value in t.items() if key != lost})
    with pytest.raises(DecoderError, match=f"is no Qwen2ForCausalLM: missing {lost}"):
        loaded(whole, "model.tokenizer=null")
    C.change_config(whole, num_hidden_layers=3)
    with pytest.raises(DecoderError, match="cannot be read"):
        loaded(whole, "model.tokenizer=null")
