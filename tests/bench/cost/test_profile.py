"""A profile says which phase, part and operator a step's time belongs to, and disturbs nothing."""

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from bench.__main__ import main
from bench.config.hydra_edge import own_settings
from bench.data.errors import ConfigError
from bench.profile import record as profile_run
from bench.profile.annotate import Window, annotated
from bench.profile.read import PRODUCTS, read
from bench.profile.record import ProfileSettings
from decoders.api import ImageModel, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution.cpu.library import missing
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.bench import fakes

STEPS, DEPTH, LAYERS = 3, 2, 2
AR = DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive"))
CHAIN = DecoderSpec(
    "chain",
    PartSpec("decoders.loops.speculative.Speculative"),
    PartSpec("decoders.propose.drafters.eagle.Eagle"),
    PartSpec("decoders.propose.trees.chain.Chain", {"depth": DEPTH}),
    PartSpec("decoders.verify.exact.Exact"),
)


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return random_model(vocab=24, grid=4, layers=LAYERS)


def recorded(model: ImageModel, spec: DecoderSpec) -> tuple[Any, Any, torch.Tensor]:
    """(decoder, profiler, codes) of an image of which STEPS steps were recorded."""
    decoder = build_decoder(model, spec, Sampling(cfg=2.0))
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with annotated(decoder, Window(profiler, 1, STEPS)):
        made = decoder.generate(model.text.encode(["a"]), Noise.for_prompts(0, ["a"], 16))
    return decoder, profiler, made.codes


def test_phases_and_parts_of_a_speculative_step(model):
    _, profiler, _ = recorded(model, CHAIN)
    reading = read(profiler, STEPS, "cpu")
    calls = {(part.phase, part.part): part.calls for part in reading.parts}
    assert calls["forward", "target forward"] == 1
    assert calls["draft", "drafter"] == DEPTH  # what was committed is read, then a node a level
    assert calls["draft", "tree"] == 1 and calls["accept", "rule"] == 1
    assert calls["accept", "cache commit"] == 1
    assert {phase for phase, _ in calls} == {"draft", "forward", "accept", "outside phases"}
    whole = sum(part.own_ms for part in reading.parts)
    assert whole == pytest.approx(reading.step_ms, rel=0.01)  # own times add up to the step
    assert sum(reading.phase_ms().values()) == pytest.approx(whole)


def test_operators_of_an_ar_step_and_only_of_the_wanted_steps(model):
    _, profiler, _ = recorded(model, AR)
    reading = read(profiler, STEPS, "cpu")
    wrappers = ("aten::linear", "aten::matmul", "aten::bmm", "aten::baddbmm")
    found = [op for op in reading.operators if op.matrix_product and op.operator not in wrappers]
    products = sum(op.calls for op in found if "attention" not in op.operator)
    assert products == 4 * LAYERS + 1  # fused qkv, output, gate and up, down; the head
    assert 0 < reading.products_ms < reading.operators_ms < reading.step_ms
    assert reading.outermost < reading.calls
    assert reading.launches == 0
    steps = [event for event in profiler.events() if event.name == "bench/step"]
    assert len(steps) == STEPS


@pytest.mark.parametrize("spec", [AR, CHAIN])
def test_a_profile_changes_no_code_and_leaves_nothing_behind(model, spec):
    plain = build_decoder(model, spec, Sampling(cfg=2.0))
    expected = plain.generate(model.text.encode(["a"]), Noise.for_prompts(0, ["a"], 16)).codes
    before = {name: set(vars(part)) for name, part in parts_of(plain).items()}
    decoder, _, codes = recorded(model, spec)
    assert torch.equal(codes, expected)
    assert {name: set(vars(part)) for name, part in parts_of(decoder).items()} == before
    assert type(decoder.execution) is type(plain.execution)


def parts_of(decoder: Any) -> dict[str, Any]:
    named = {name: getattr(decoder, name, None) for name in ("drafter", "tree", "rule")}
    found = {name: part for name, part in named.items() if part is not None}
    return {"decoder": decoder, "target": decoder.model.target, **found}


def test_everything_is_put_back_after_a_failure(model):
    decoder = build_decoder(model, CHAIN, Sampling())
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    window = Window(profiler, 0, 99)
    with pytest.raises(RuntimeError, match="broken"), annotated(decoder, window), window.step():
        raise RuntimeError("broken")
    assert not window.running and "forward_codes" not in vars(model.target)
    assert not any(name in vars(decoder.tree) for name in ("grow",))


class Prepared:
    """A loop whose backend has prepared its pieces, as torch.compile does."""

    rule = None

    def __init__(self) -> None:
        self.execution, self.name = self, "compile"

    def pieces(self) -> list[Any]:
        return []

    def begin(self, loop: Any, run: Any) -> Any:
        run.pieces = {id(loop): [("draft", self.work), ("forward", self.work)]}
        return run

    def work(self, run: Any) -> torch.Tensor:
        return torch.mm(run.square, run.square)

    def step(self, loop: Any, run: Any) -> tuple[Any, ...]:
        return tuple(piece(run) for _, piece in run.pieces[id(loop)])


def test_prepared_pieces_carry_their_phases():
    loop = Prepared()
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with annotated(loop, Window(profiler, 0, 2)):
        run = loop.execution.begin(loop, SimpleNamespace(square=torch.eye(4), pieces={}))
        for _ in range(2):
            loop.execution.step(loop, run)
    reading = read(profiler, 2, "cpu")
    assert {(p.phase, p.calls) for p in reading.parts} == {
        ("outside phases", 1.0), ("draft", 1.0), ("forward", 1.0),
    }  # fmt: skip
    assert loop.pieces() == [] and loop.execution is loop


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("aten::mm", True), ("aten::addmm", True), ("aten::linear", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", True),
        ("mkldnn::_linear_pointwise", True), ("aten::_softmax", False), ("aten::mul", False),
        ("aten::dot_product", False),
    ],
)  # fmt: skip
def test_what_counts_as_a_matrix_product(name, product):
    assert bool(PRODUCTS.search(name)) == product


def words(tmp_path, *more: str) -> list[str]:
    return [
        fakes.SEARCHPATH, "study=fake", "model=random24", f"run_dir={tmp_path}",
        "profile.steps=2", *more,
    ]  # fmt: skip


def test_the_command_writes_traces_and_tables(tmp_path, capsys):
    more = "decoders=[ar,{decoder: sd_chain, overrides: ['tree.depth=2']}]"
    more = (more, "profile.top=3", "backend.layers=torch")
    assert main(["profile", *words(tmp_path, *more)]) == 0
    shown = capsys.readouterr().out
    assert "outside matrix products" in shown and "target forward" in shown
    folder = tmp_path / "profile"
    trace = json.loads((folder / "sd_chain.trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("bench/step") == 2 and "bench/forward" in names
    ar = pd.read_csv(folder / "summary.csv").set_index("decoder").loc["ar"]
    assert ar.step_ms > 0 and ar.execution == "eager" and 0 < ar.outside_products < 1
    phases = pd.read_csv(folder / "phases.csv")
    found = set(zip(phases.decoder, phases.phase, strict=True))
    assert {("sd_chain", "draft"), ("sd_chain", "accept"), ("ar", "forward")} <= found
    assert (folder / "operators.csv").stat().st_size > 0


def test_a_failing_decoder_is_a_row_and_the_others_go_on(tmp_path, capsys):
    bad = "{decoder: fake_ar, name: bad, overrides: ['loop.fail_at=number']}"
    more = ("model=fake", f"decoders=[fake_ar,{bad}]")
    assert main(["profile", *words(tmp_path, *more)]) == 1
    captured = capsys.readouterr()
    assert "NaN logits" in captured.err and "bad: failed" in captured.out
    rows = pd.read_csv(tmp_path / "profile" / "summary.csv")
    assert list(rows.status) == ["ok", "failed"]
    # A loop that does not say where its steps begin is profiled as a whole.
    assert rows.steps[0] == fakes.LENGTH - 1


def test_a_big_trace_is_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_run, "BIG", 10)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.eye(3).sum()
    path = profile_run.export(profiler, tmp_path / "x.trace.json")
    assert path.name == "x.trace.json.gz" and not (tmp_path / "x.trace.json").exists()
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@pytest.mark.parametrize(
    ("word", "said"), [("profile.step=2", "steps"), ("profile.steps=0", "at least 1")]
)
def test_bad_settings_are_refused_with_what_is_known(word, said):
    with pytest.raises(ConfigError, match=said):
        own_settings(ProfileSettings, "profile", [word])


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_calls_of_the_cpu_kernel_are_told(tmp_path, capsys):
    assert main(["profile", *words(tmp_path, "decoders=[ar]", "backend.layers=native")]) == 0
    shown = capsys.readouterr().out
    assert "in the CPU kernel" in shown and "lantern::next" in shown
    assert "outside matrix products" not in shown
    line = pd.read_csv(tmp_path / "profile" / "summary.csv").iloc[0]
    assert 0 < line.cpu_kernel_ms < line.recorded_step_ms and pd.isna(line.products_ms)
