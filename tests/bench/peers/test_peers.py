"""Ours beside transformers: the converted model is the same model, and the comparison is fair."""

from __future__ import annotations

import csv
import dataclasses
import math
import shutil

import pytest
import torch

from bench.__main__ import main
from bench.config.own_settings import own_settings
from bench.errors import ConfigError
from bench.peers import check
from bench.peers.check import prove
from bench.peers.convert import PeerError, llama_of, prompt_of
from bench.peers.generate import Assisted, Generate, Guided
from bench.peers.lineup import OURS, THEIRS, Contender, Mode, PeersSettings, modes_of
from bench.peers.measure import Timing
from bench.peers.result import headlines, rows_of
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.distribution import code_logits, probabilities
from decoders.loops.autoregressive import Autoregressive
from decoders.models.small import random_model
from decoders.models.transformer import Transformer, TransformerConfig
from decoders.noise import Noise
from decoders.tiny import bundle
from tests.bench.fakes import SEARCHPATH

AR = DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive"))
GRID = 4
LENGTH = GRID * GRID


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return random_model(vocab=24, grid=GRID, layers=3)


def early(layers: int, depth: int) -> DecoderSpec:
    return DecoderSpec(
        "early",
        PartSpec("decoders.loops.speculative.Speculative"),
        PartSpec("decoders.propose.drafters.early_exit.EarlyExit", {"layers": layers}),
        PartSpec("decoders.propose.trees.chain.Chain", {"depth": depth}),
        PartSpec("decoders.verify.exact.Exact"),
    )


def inputs(model: ImageModel, prompt: str = "a b") -> tuple[TextFeatures, Noise]:
    return model.text.encode([prompt]), Noise.for_prompts(0, [prompt], model.target.length)


# ---- identical weights ---------------------------------------------------------------------------


def test_the_embedded_model_is_the_same_in_both_libraries():
    """Identity prefix rotation, left padding: logits to 1e-4, greedy codes to the last one."""
    embedded = bundle.load(dtype="float32")
    prompts = ["a large red circle above a small blue square", "a green star"]
    proof = prove(embedded, AR, Sampling(cfg=1.0), prompts, 1e-4)
    assert proof.difference <= 1e-4
    assert proof.codes == 2 * 256


@pytest.mark.parametrize("rope", ["zero", "identity"])
@pytest.mark.parametrize("positions", ["grid", "line"])
def test_every_rotation_is_translated(rope, positions):
    """Also LlamaGen's: the grid's table is zero on the prefix, where keys and queries vanish."""
    made = random_model(vocab=24, grid=GRID, layers=3)
    config = dataclasses.replace(made.target.cfg, prefix_rope=rope, positions=positions)
    target = Transformer(config).eval().requires_grad_(False)
    target.load_state_dict(made.target.state_dict())
    changed = dataclasses.replace(made, target=target)
    proof = prove(changed, AR, Sampling(cfg=2.0), ["a b", "three words here"], 1e-4)
    assert proof.codes == 2 * 2 * LENGTH  # without and with guidance


@pytest.mark.parametrize("cfg", [1.0, 2.0])
@pytest.mark.parametrize("static", [False, True])
def test_greedy_codes_are_ours_whatever_the_cache(model, cfg, static):
    greedy = Sampling(temperature=0.0, cfg=cfg)
    text, noise = inputs(model)
    expected = Autoregressive(model, greedy).generate(text, noise).codes
    found = Generate(model, greedy, llama_of(model.target), static=static).generate(text, noise)
    assert torch.equal(found.codes, expected)
    assert int(found.trace.target_calls[0]) == LENGTH - 1


@pytest.mark.parametrize(("layers", "most"), [(2, LENGTH - 1), (3, 6)])
def test_assisted_generation_drafts_with_the_very_same_drafter(model, layers, most):
    """Same codes and, as drafts are the same, the same number of target forwards; with all three
    layers every draft is right: three codes a forward."""
    greedy = Sampling(temperature=0.0)
    text, noise = inputs(model)
    ours = build_decoder(model, early(layers, 2), greedy).generate(text, noise)
    llama, assistant = llama_of(model.target), llama_of(model.target, layers=layers)
    theirs = Assisted(model, greedy, llama, assistant, 2).generate(text, noise)
    assert torch.equal(theirs.codes, ours.codes)
    # Ours has a prefill of its own, theirs drafts before it: a forward less or more.
    assert abs(int(theirs.trace.target_calls[0]) - int(ours.trace.target_calls[0])) <= 1
    assert int(theirs.trace.target_calls[0]) <= most


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.slow
def test_the_compiled_variant_is_compiled_and_gives_the_same_codes():
    model = random_model(vocab=24, grid=GRID, layers=1)
    greedy = Sampling(temperature=0.0, cfg=2.0)
    text, noise = inputs(model)
    expected = Autoregressive(model, greedy).generate(text, noise).codes
    llama = llama_of(model.target)
    made = Generate(model, greedy, llama, static=True, compiled=True)
    assert torch.equal(made.generate(text, noise).codes, expected)
    assert hasattr(llama, "_compiled_call")


def test_a_run_that_did_not_compile_is_an_error_not_a_figure(model):
    made = Generate(model, Sampling(temperature=0.0), llama_of(model.target), compiled=True)
    with pytest.raises(PeerError, match="without compiling"):  # a dynamic cache is never compiled
        made.generate(*inputs(model))


def test_other_weights_stop_the_comparison(model, monkeypatch):
    def spoilt(target):
        llama = llama_of(target)
        weight = llama.model.layers[0].self_attn.q_proj.weight
        llama.model.layers[0].self_attn.q_proj.weight.data = weight.flip(0).clone()
        return llama

    monkeypatch.setattr(check, "llama_of", spoilt)
    with pytest.raises(PeerError, match="do not run the same model"):
        prove(model, AR, Sampling(cfg=2.0), ["a b"], 1e-4)


def test_weights_are_shared_but_for_the_reordered_ones(model):
    own = {p.data_ptr() for p in model.target.parameters()}
    llama = llama_of(model.target)
    assert llama.lm_head.weight.data_ptr() in own
    assert not any(p.requires_grad for p in llama.parameters())


@pytest.mark.parametrize(
    ("change", "said"),
    [({"qk_norm": True}, "normalised queries"), ({"row_end": True}, "structural codes")],
)
def test_models_without_a_counterpart_are_refused(change, said):
    config = TransformerConfig(
        vocab=24, width=32, layers=1, heads=2, ffn=64, grid=2, prefix=4, text_width=8, **change
    )
    with pytest.raises(PeerError, match=said):
        llama_of(Transformer(config))


# ---- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cfg", "top_k"), [(1.0, 0), (1.0, 5), (3.0, 5)])
def test_codes_are_drawn_from_our_law(model, cfg, top_k):
    """Histogram of the first code over 600 rows of one prompt, against our probabilities."""
    from scipy.stats import chisquare

    rows = 600
    sampling = Sampling(temperature=0.9, cfg=cfg, top_k=top_k)
    text = model.text.encode(["a b"] * rows)
    made = Generate(model, sampling, llama_of(model.target))
    codes = made.generate(text, Noise.for_prompts(1, ["x"] * rows, LENGTH)).codes[:, 0]
    one, copies = model.text.encode(["a b"]), sampling.guidance_rows
    cache = model.target.new_cache(copies, model.target.prefix)
    hidden = model.target.prefill(one, copies, cache)[:, -1:]
    logits = code_logits(model.target, hidden, cfg, torch.zeros(1, 1, dtype=torch.long))
    p = probabilities(logits, sampling)[0, 0]
    counts = torch.bincount(codes, minlength=24).float()
    assert counts[p == 0].sum() == 0
    kept = p * rows >= 5
    pooled = lambda x: torch.cat([x[kept], x[~kept].sum()[None]]).double().numpy()  # noqa: E731
    expected = pooled(p * rows)
    seen = pooled(counts)[expected > 0]
    expected = expected[expected > 0]
    assert chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-4


def test_guidance_gives_both_rows_one_code():
    torch.manual_seed(0)
    scores = torch.randn(6, 9)
    ids = torch.zeros(6, 0, dtype=torch.long)
    drawn = Guided(Sampling(cfg=2.0))(ids, scores).argmax(-1)
    assert torch.equal(drawn[:3], drawn[3:])
    greedy = Guided(Sampling(cfg=2.0, temperature=0.0))(ids, scores)
    assert torch.allclose(greedy[:3], scores[3:] + 2.0 * (scores[:3] - scores[3:]))


def test_drawing_leaves_the_generator_as_it_was_and_repeats(model):
    made = Generate(model, Sampling(), llama_of(model.target))
    text, noise = inputs(model)
    before = torch.random.get_rng_state()
    first = made.generate(text, noise).codes
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(made.generate(text, noise).codes, first)


def test_padding_is_masked_and_positions_count_it(model):
    prompt = prompt_of(model.target, model.text.encode(["a b"]), 2)
    assert prompt.mask.tolist() == [[0, 1, 1, 1]] * 2
    assert prompt.positions.tolist() == [[0, 1, 2, 3]] * 2


# ---- settings, rows, the command -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("peers.promts=3", "prompts"),
        ("peers.prompts=1", "at least 2"),
        ("peers.prompts=many", "an integer"),
        ("peers.modes=[samplin]", "'sampling'"),
        ("peers.variants=[compield]", "'compiled'"),
        ("peers.variants=[]", "empty"),
        ("peers.attention=flash", "sdpa"),
        ("peers.tolerance=0", "above 0"),
        ("peers=3", "peers.NAME"),
    ],
)
def test_bad_settings_are_refused_with_what_is_known(word, said):
    with pytest.raises(ConfigError, match=said):
        own_settings(PeersSettings, "peers", [word])


def test_settings_are_told_from_the_study_s():
    settings, rest = own_settings(
        PeersSettings, "peers", ["study=peers", "peers.modes=[greedy]", "seed=3"]
    )
    assert settings.modes == ["greedy"] and rest == ["study=peers", "seed=3"]


def test_modes_take_guidance_and_temperature_of_the_model():
    base = Sampling(temperature=0.7, cfg=3.0, top_k=9)
    found = {m.name: m.sampling for m in modes_of(["sampling", "guided_greedy"], base)}
    assert found["sampling"] == Sampling(temperature=0.7, cfg=1.0, top_k=9)
    assert found["guided_greedy"] == Sampling(temperature=0.0, cfg=3.0, top_k=9)
    with pytest.raises(ConfigError, match="no guidance of its own"):
        modes_of(["guided_sampling"], Sampling(cfg=1.0))


def timing(name, engine, seconds, drafter="", **more) -> Timing:
    none = Autoregressive(random_model(), Sampling())
    contender = Contender(name, engine, none, drafter, **more)
    return Timing(contender, first=10.0, seconds=dict(enumerate(seconds)), forwards=[5] * 3)


def test_ratios_are_paired_and_say_who_is_faster():
    timings = [
        timing("ar", OURS, [1.0, 2.0, 3.0], baseline=True),
        timing("early", OURS, [2.0, 2.0, 2.0], "first 1 layers"),
        timing("generate", THEIRS, [2.0, 4.0, 6.0]),
        timing("compiled", THEIRS, [1.0, 1.0, 1.0], compiled=True),
        timing("assisted", THEIRS, [6.0, 6.0, 6.0], "first 1 layers"),
    ]
    broken = timing("static", THEIRS, [1.0])
    broken.error = "ValueError: no"
    rows = {row.name: row for row in rows_of(Mode("sampling", Sampling()), [*timings, broken])}
    ratio = rows["generate"].ratio
    assert (ratio.value, ratio.lo, ratio.hi) == (2.0, 2.0, 2.0)  # prompt by prompt twice as slow
    assert rows["assisted"].same_drafter.value == 3.0
    assert math.isnan(rows["generate"].same_drafter.value)
    assert rows["compiled"].compile_seconds == 9.0  # its first image beyond a usual one
    assert math.isnan(rows["generate"].compile_seconds)
    assert rows["static"].failed and math.isnan(rows["static"].ratio.value)
    said = [str(line) for line in headlines(list(rows.values()))]
    assert said[0] == "our AR is 2.00 [2.00, 2.00] times as fast as generate (sampling)"
    assert said[1].endswith("compiled (sampling), the fastest of these")
    assert "same drafter" in said[-1] and "3.00" in said[-1] and len(said) == 3


def test_the_command_compares_writes_and_keeps_what_failed(tmp_path, capsys):
    words = [
        SEARCHPATH, "model=random24", "prompts=fake", "backend.dtype=float32", "backend.threads=1",
        f"run_dir={tmp_path}", "peers.prompts=2", "peers.check=1", "latency.warmup_max=1",
        "peers.modes=[sampling,guided_greedy]", "peers.variants=[dynamic,assisted]",
        "drafter.layers=1",
    ]  # fmt: skip
    assert main(["peers", *words]) == 0
    shown = capsys.readouterr().out
    assert "identical weights" in shown and "our AR is" in shown
    assert "batch_size = 1" in shown  # guidance needs two rows
    rows = list(csv.DictReader((tmp_path / "peers.csv").read_text().splitlines()))
    status = {(r["mode"], r["decoder"]): r["status"] for r in rows}
    assert status["sampling", "generate, assisted"] == "ok"
    assert status["guided_greedy", "generate, assisted"] == "failed"
    ours = next(r for r in rows if r["decoder"] == "ar")
    assert float(ours["seconds"]) > 0 and float(ours["target_forwards"]) == 9
    assert ours["cpu"] and ours["transformers"] and ours["threads"] == "1"
    assert float(ours["largest_logit_difference"]) < 1e-4
    drafters = {r["decoder"]: r["drafter"] for r in rows}
    assert drafters["early_exit"] == drafters["generate, assisted"] != drafters["eagle_chain"]
    assert "| ar (ours) |" in (tmp_path / "peers.md").read_text()


def test_a_study_without_a_baseline_is_refused(capsys):
    assert main(["peers", "decoders=[early_exit]"]) == 2
    assert "needs a baseline" in capsys.readouterr().err
