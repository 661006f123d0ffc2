"""Rates, peers, profiles and batch scaling on a GPU: rates by events with no launches in them; same
model, kernels and launches, out of memory."""

import csv
import json

import pytest
import torch

from bench.__main__ import main
from bench.cost.machine import gpu_seconds, measure_rates
from bench.profile.annotate import Window, annotated
from bench.profile.read import read
from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.executed import execution
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.peers.generate import Generate, prove
from tests.bench.fakes import SEARCHPATH

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
AR = DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive"))


def reading(mode: str, steps: int = 3):
    model = random_model(vocab=24, grid=4, device="cuda")
    decoder = build_decoder(model, AR, Sampling(cfg=2.0))
    decoder.execution = execution(mode)
    text, noise = model.text.encode(["a"]), Noise.for_prompts(0, ["a"], 16)
    decoder.generate(text, noise)  # records the graph
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=kinds)
    with annotated(decoder, Window(profiler, 4, steps)):
        decoder.generate(text, noise)
    return read(profiler, steps, "cuda")


def test_an_eager_step_is_many_kernels_and_its_products_are_among_them():
    found = reading("eager")
    assert found.launches > 20 and found.kernel_ms > 0
    assert 0 < found.products_ms <= found.kernel_ms


def test_a_recorded_step_is_one_launch():
    found = reading("graph")
    assert 1 <= found.launches < 2 and found.kernel_ms > 0


def test_both_libraries_run_the_same_model():
    model = random_model(vocab=24, grid=4, layers=3, device="cuda")
    made = Generate(model, Sampling(cfg=2.0))
    assert prove(made, model.text.encode(["a b"]), 1e-4) <= 1e-4


def test_generate_compiles_with_its_static_cache():
    model = random_model(vocab=24, grid=4, device="cuda")
    greedy = Sampling(temperature=0.0, cfg=2.0)
    text, noise = model.text.encode(["a"]), Noise.for_prompts(0, ["a"], 16)
    expected = build_decoder(model, AR, greedy).generate(text, noise).codes
    made = Generate(model, greedy, static=True, compiled=True)
    for _ in range(3):  # compiling, recording, replaying
        assert torch.equal(made.generate(text, noise).codes, expected)


def test_a_batch_that_does_not_fit_is_a_row_and_the_next_one_runs(tmp_path):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1.5e9 / total))
    words = [
        "run", "study=batch", "backend=cuda", "decoders=[ar]", f"run_dir={tmp_path}", "gate=false",
        "latency.batch=[2048,1]", "latency.requests=null", "latency.repeats=2", "latency.prompts=2",
    ]  # fmt: skip
    try:
        assert main(words) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    rows = list(csv.DictReader((tmp_path / "report" / "scaling.csv").read_text().splitlines()))
    assert [row["batch"] for row in rows] == ["1", "2048"]
    assert not rows[0]["error"] and float(rows[0]["peak_memory_mb"]) > 0
    assert "OutOfMemoryError" in rows[1]["error"]


def test_the_profile_command_counts_launches(tmp_path):
    words = [
        SEARCHPATH, "study=fake", "model=random24", "backend=cuda", "decoders=[ar]",
        f"run_dir={tmp_path}", "profile.steps=2",
    ]  # fmt: skip
    assert main(["profile", *words]) == 0
    (row,) = csv.DictReader((tmp_path / "profile" / "summary.csv").read_text().splitlines())
    assert float(row["launches"]) > 0 and float(row["kernel_ms"]) > 0
    trace = json.loads((tmp_path / "profile" / "ar.trace.json").read_text())
    assert any(event.get("cat") == "kernel" for event in trace["traceEvents"])


def test_rates_of_a_gpu_are_within_what_gpus_do():
    device = torch.device("cuda")
    rates = measure_rates(device, torch.bfloat16, 1_500_000_000, torch.cuda.get_device_name())
    assert 5e10 < rates.large_bytes_per_s < 2e13
    assert rates.bytes_per_s >= rates.large_bytes_per_s
    assert 1e12 < rates.operations_per_s < 1e16


def test_a_small_set_is_read_from_the_cache_and_not_bound_by_launches():
    device = torch.device("cuda")
    rates = measure_rates(device, torch.bfloat16, 16_000_000, "here")
    assert rates.bytes_per_s >= rates.large_bytes_per_s
    x = torch.ones(1000, device=device)
    assert min(gpu_seconds(lambda: x.sum())) < 50e-6
