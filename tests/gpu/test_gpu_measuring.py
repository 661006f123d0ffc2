"""Rates, peers and batch scaling on a GPU: rates that launches do not bound, the same
model in transformers, a batch that does not fit."""

import pytest
import torch

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.measure.roofline import measure_rates
from decoders.api import Sampling
from decoders.compose import build_decoder
from decoders.loops.hf_generate import Generate
from decoders.models.random_weights import random_model
from tests.decoders.compositions import SPECS, images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_generate_compiles_with_its_static_cache():
    model = random_model(vocab=24, grid=4, device="cuda")
    greedy = Sampling(temperature=0.0, cfg=2.0)
    expected = images(build_decoder(model, SPECS["ar"], greedy), ["a"]).codes
    decoder = Generate(model, greedy, cache="compiled")
    for _ in range(3):  # compiling, capturing, replaying
        assert torch.equal(images(decoder, ["a"]).codes, expected)


def test_a_batch_that_does_not_fit_is_a_row_and_the_next_one_runs(tmp_path):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1.5e9 / total))
    words = [
        "run", "study=batch", "backend=cuda", "decoders=[ar]", f"run_dir={tmp_path}", "gate=false",
        "latency.batch=[2048,1]", "latency.requests=null", "latency.prompts=4",
        "latency.spacing=0",
    ]  # fmt: skip
    try:
        assert main(words) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    one, many = load(tmp_path).lines("batches")
    assert (one.batch, many.batch) == (1, 2048)
    assert not one.error and one.peak_memory_mb > 0
    assert "OutOfMemoryError" in many.error


def test_rates_of_a_gpu_are_within_what_gpus_do():
    model = random_model(dtype=torch.bfloat16, device="cuda")
    large, small = (measure_rates(model, size) for size in (1_500_000_000, 16_000_000))
    assert 5e10 < large["step_bytes_per_s"] < 2e13
    assert 1e12 < large["operations_per_s"] < 1e16
    assert small["step_bytes_per_s"] > 0.5 * large["step_bytes_per_s"], "not bound by launches"
