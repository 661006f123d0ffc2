"""`bench steps`: a step is timed together with its own matrix products."""

from __future__ import annotations

import torch

from bench.measure.steps import products, step_costs
from decoders.api import Sampling
from decoders.models.small import random_model


def test_every_part_is_timed_and_costs_more_than_its_products() -> None:
    model = random_model(vocab=64, grid=4, width=64, layers=3)
    with torch.inference_mode():
        costs = step_costs(model, Sampling(cfg=2.0), model.text.encode(["x"]), nodes=(1, 5))
    assert [c.name for c in costs] == ["AR step", "verify 4 nodes + root", "draft call (eagle)"]
    assert all(c.factor > 1 for c in costs)
    assert costs[2].step_ms < costs[0].step_ms  # one layer against three


def test_products_run_every_linear_layer_once() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    seen: list[int] = []
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda *_: seen.append(1))
    with torch.profiler.profile() as profile:
        products(net, rows=3)()
    assert not seen  # the weights are multiplied, the modules are not called
    calls = {e.key: e.count for e in profile.key_averages()}
    assert calls["aten::linear"] == 2
