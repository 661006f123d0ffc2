"""The rates of a GPU: far above a CPU's, by events, with nothing of the launches in them."""

from __future__ import annotations

import pytest
import torch

from bench.cost.machine import gpu_seconds, measure_rates

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


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
