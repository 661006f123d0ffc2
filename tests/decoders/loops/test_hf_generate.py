"""transformers' generate as a decoder: the converted model is the same model, codes have our law,
and a study with both is an ordinary one."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import CompileConfig

from bench.__main__ import main
from bench.gate import check_decoder
from decoders.api import DecoderError, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, PartSpec
from decoders.loops import hf_generate
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.hf_generate import Generate, llama_of, prompt_of, prove
from decoders.models import llamagen
from decoders.models.nets.transformer import Transformer
from decoders.models.random_weights import random_model
from tests import checkpoints as K
from tests.bench.fakes import SEARCHPATH
from tests.decoders.compositions import images
from tests.exact.specs import SMALL
from tests.tiny import short

GRID = 4
LENGTH = GRID * GRID
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return random_model(vocab=24, grid=GRID, layers=3)


def codes_of(decoder: Any) -> Tensor:
    return images(decoder, ["a b"]).codes


# ---- identical weights ---------------------------------------------------------------------------


@torch.inference_mode()
def difference(target: Transformer, text: TextFeatures) -> float:
    """The largest of logits in both libraries, along some codes, without guidance."""
    codes = torch.arange(target.length)[None] % target.vocab_size
    drop = torch.zeros(1, dtype=torch.bool)
    prompt, read = prompt_of(target, text, 1), codes[:, :-1]
    llama: Any = llama_of(target)
    theirs = llama(
        inputs_embeds=torch.cat([prompt["inputs_embeds"], target.embed(read)], 1),
        attention_mask=torch.cat([prompt["attention_mask"], torch.ones_like(read)], 1),
        position_ids=torch.arange(target.prefix + read.shape[1])[None],
        use_cache=False,
    ).logits[:, target.prefix - 1 :]  # [1, L, V]
    return float((theirs - target.logits(target(text, codes, drop))).abs().max())


@pytest.mark.parametrize(("cfg", "cache"), [(1.0, "dynamic"), (3.0, "static")])
def test_the_embedded_model_is_the_same_in_both_libraries(cfg, cache):
    """Identity prefix rotation, left padding, bfloat16: greedy codes to the last one, and logits in
    float32."""
    caption = ["a large red circle above a square"]
    embedded, exact = short.load(dtype="bfloat16"), short.load(dtype="float32")
    prove(Generate(embedded, Sampling(cfg=cfg), cache=cache), embedded.text.encode(caption))
    assert difference(exact.target, exact.text.encode(caption)) < 1e-4


def test_a_class_conditional_model_is_the_same_in_both_libraries(tmp_path: Path):
    """Its prefix is a class number, no features."""
    path = K.write_original(tmp_path / "c2i.pt", {"model": K.llamagen(classes=10)})
    made = llamagen.load(dtype="bfloat16", checkpoint=str(path), grid=K.LITTLE.grid)
    codes = images(Generate(made, Sampling(cfg=2.0)), ["7"]).codes
    assert codes.shape == (1, K.LITTLE.grid**2)


@pytest.mark.parametrize("rope", ["zero", "identity"])
@pytest.mark.parametrize("positions", ["grid", "line"])
def test_every_rotation_is_translated(rope, positions):
    """Also LlamaGen's: the grid's table is zero on the prefix, where keys and queries vanish."""
    made = random_model(vocab=24, grid=GRID, layers=3)
    config = dataclasses.replace(made.target.config, prefix_rope=rope, positions=positions)
    target = Transformer(config).eval().requires_grad_(False)
    target.load_state_dict(made.target.state_dict())
    changed = dataclasses.replace(made, target=target)
    for prompt in ("a b", "three words here"):
        text = changed.text.encode([prompt])
        prove(Generate(changed, Sampling(cfg=2.0)), text)
        assert difference(target, text) < 1e-4


def test_the_compiled_variant_is_compiled_and_gives_the_same_codes(monkeypatch):
    """Traced as a whole; nothing is made of the graph, which would take half a minute."""
    how = partial(CompileConfig, backend="eager", mode=None)
    monkeypatch.setattr(hf_generate, "CompileConfig", how)
    model = random_model(vocab=24, grid=GRID, layers=1)
    greedy = Sampling(temperature=0.0, cfg=2.0)
    made = Generate(model, greedy, cache="compiled")
    assert torch.equal(codes_of(made), codes_of(Autoregressive(model, greedy)))
    assert hasattr(made.llama, "_compiled_call")


def test_other_weights_are_no_image(model, monkeypatch):
    def spoilt(target):
        llama = llama_of(target)
        weight = llama.model.layers[0].self_attn.q_proj.weight
        llama.model.layers[0].self_attn.q_proj.weight.data = weight.flip(0).clone()
        return llama

    monkeypatch.setattr(hf_generate, "llama_of", spoilt)
    with pytest.raises(DecoderError, match="do not run the same model"):
        codes_of(Generate(model, Sampling()))
    made = Generate(model, Sampling(), prove=False)
    assert codes_of(made).shape == (1, LENGTH)


# ---- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(0.9, cfg=3.0, top_k=500), GREEDY])
def test_the_gate_finds_ar_s_law(sampling):
    spec = DecoderSpec("hf_generate", PartSpec("decoders.loops.hf_generate.Generate"))
    assert check_decoder(spec, sampling, sizes=SMALL).word == "exact"


# ---- as decoders of a study ----------------------------------------------------------------------


def test_the_command_runs_a_study_of_both(tmp_path: Path):
    words = [
        SEARCHPATH, "model=random24", "prompts=fake", "decoders=[ar, hf_generate]",
        "backend=cpu_torch", "backend.dtype=float32", "backend.threads=1",
        f"run_dir={tmp_path}", "latency.prompts=2", "latency.warmup_max=1", "latency.busy=1",
    ]  # fmt: skip
    assert main(["run", "study=peers", *words]) == 0
    summary = pd.read_csv(tmp_path / "summary.csv", index_col="decoder")
    assert summary.nfe["ar"] == summary.nfe["hf_generate"] == 8
    assert summary.speedup["hf_generate"] > 0
    rows = pd.read_parquet(tmp_path / "records.parquet")
    theirs = rows[rows.decoder == "hf_generate"].iloc[0]
    assert theirs.loop == "generate(dynamic cache)" and theirs.drafter == "none"
    assert "transformers" in theirs.versions
    assert "hf_generate" in (tmp_path / "report" / "table.txt").read_text()
