"""Floors: what a forward needs against counts of the real thing, and what a run writes of it."""

import dataclasses
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from bench.judge.roofline import drafted_on, roofline
from bench.measure.floors import (
    Net,
    Unknown,
    Work,
    drafter_net,
    head_parameters,
    layer_parameters,
    parameters,
    target_net,
)
from bench.measure.machine import best_shown, measure_rates
from bench.measure.rates import MachineRates, Moment, read_rates, save_rates
from bench.run.finish import finish
from bench.run.runner import run_study
from decoders.api import Sampling
from decoders.compose import PartSpec
from decoders.models.small import random_model
from decoders.models.transformer import Transformer, TransformerConfig
from decoders.propose.drafters.medusa import Medusa
from tests.bench import fakes

CPU = torch.device("cpu")
RATES = MachineRates("cpu", "made up", "float32", 1, 2**28, 10e9, 4 * 2**20, 40e9, 100e9, 0.05, 1.0)
REAL = (
    "model=random24", "metric=none", "quality.images=0", "latency.prompts=2",
    "decoders=[ar,{decoder: eagle2, overrides: ['tree.depth=2','tree.top_k=2','tree.nodes=4']}]",
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return random_model(vocab=24, grid=3, width=32, layers=3)


def flops_of_forward(model, rows: int, codes: int, slots: int) -> int:
    """Operations of the matrix products that a forward over `codes` codes really runs."""
    target = model.target
    cache = target.new_cache(rows, slots)
    ids = torch.zeros(rows, codes, dtype=torch.long)
    places = torch.arange(codes).expand(rows, -1)
    mask = torch.ones(rows, codes, slots, dtype=torch.bool)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        hidden = target.forward_codes(ids, places, places, mask, cache)
        target.logits(hidden)
    return counter.get_total_flops()


@pytest.mark.parametrize(("rows", "codes", "slots"), [(1, 1, 5), (2, 1, 9), (2, 5, 13)])
def test_operations_and_bytes_are_those_of_the_real_forward(model, rows, codes, slots):
    net = target_net(model)
    assert isinstance(net, Net)
    found = net.work(rows, codes, slots)
    # The formula counts norm weights as if they were products: less than one part in a hundred.
    assert found.operations == pytest.approx(flops_of_forward(model, rows, codes, slots), rel=0.01)
    read = [*model.target.layers.parameters(), model.target.norm.weight, model.target.output.weight]
    cache = model.target.new_cache(rows, slots).data
    assert found.bytes == sum(p.nbytes for p in read) + cache.nbytes


@pytest.mark.parametrize("changed", [{}, {"qk_norm": True}, {"group": 4}, {"head": "mlp"}])
def test_parameters_by_formula_are_those_of_the_modules(changed):
    cfg = TransformerConfig(**changed)
    with torch.device("meta"):
        target = Transformer(cfg)
    assert cfg.layers * layer_parameters(cfg) == parameters(target.layers)
    assert head_parameters(cfg) == parameters(target.output)


def test_half_precision_halves_the_bytes_and_leaves_the_operations():
    full, half = (
        target_net(random_model(dtype=kind)).work(2, 3, 6)
        for kind in (torch.float32, torch.bfloat16)
    )
    assert full.bytes == 2 * half.bytes and full.operations == half.operations


def test_a_drafter_reads_its_layer_and_the_targets_head(model):
    target = target_net(model)
    net = drafter_net(model.drafters["eagle"], target)
    own = model.drafters["eagle"]
    read = [*own.fc.parameters(), *own.layers.parameters(), model.target.output.weight]
    assert net.weights_bytes == sum(p.nbytes for p in read)
    assert net.work(2).bytes < target.work(2).bytes


def test_a_floor_is_the_larger_of_reading_and_computing():
    assert Work(80e9, 1.0).floor_seconds(RATES) == 2.0  # at the 40 GB/s where the weights are
    assert Work(1.0, 300e9).floor_seconds(RATES) == 3.0
    slow = dataclasses.replace(RATES, step_bytes_per_s=5e9)
    assert slow.bytes_per_s == 10e9, "a floor uses the best rate that was seen"


class NoConfig:
    vocab_size, width, length, prefix, barred = 8, 4, 4, 1, None


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (NoConfig(), "NoConfig has no `cfg`"),
        (SimpleNamespace(cfg=SimpleNamespace(width=4)), "lacks a field"),
    ],
)
def test_a_plug_in_without_a_shape_has_no_floor_and_says_why(model, target, words):
    found = target_net(dataclasses.replace(model, target=target))
    assert isinstance(found, Unknown)
    assert "no floor known" in str(found) and words in str(found)
    assert drafter_net(model.drafters["eagle"], found) is found


def test_other_layers_and_a_drafter_of_several_heads_have_no_floor(model):
    found = drafter_net(Medusa(model, heads=2).net, target_net(model))
    assert isinstance(found, Unknown) and "run once a call" in str(found)
    other = random_model()
    other.target.layers[0].extra = torch.nn.Linear(3, 3)
    found = target_net(other)
    assert isinstance(found, Unknown) and "parameters" in str(found)


TREES = "decoders.propose.trees."


@pytest.mark.parametrize(
    ("tree", "settings", "expected"),
    [
        ("chain.Chain", {"depth": 4}, 3),
        ("dynamic.Dynamic", {"depth": 3, "top_k": 2, "nodes": 6}, 4),
        ("static.Static", {"choices": [[0], [1], [0, 0], [1, 0], [0, 0, 0]]}, 3),
        ("dynamic.Dynamic", {"depth": 9, "top_k": 2, "nodes": 1}, 0),  # impossible
    ],
)
def test_codes_that_a_tree_drafts_on_from_are_counted(model, tree, settings, expected):
    assert drafted_on(PartSpec(TREES + tree, settings), model, Sampling()) == expected


@pytest.mark.alone
def test_the_machine_is_measured_in_seconds_and_no_faster_than_it_is():
    began = time.perf_counter()
    rates = measure_rates(CPU, torch.float32, 2_000_000, "here")
    assert rates.seconds <= time.perf_counter() - began < 20  # under 3 where nothing else runs
    weights = torch.ones(500_000)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        weights.max()
        times.append(time.perf_counter() - began)
    # Another reduction over as many bytes, from the same cache, is within a factor of ten: other
    # work on the machine may slow either of the two.
    seen = weights.nbytes / min(times)
    assert seen / 100 < rates.step_bytes_per_s and seen < 10 * rates.step_bytes_per_s
    x = torch.randn(384, 384)
    began = time.perf_counter()
    F.linear(x, x)
    assert 2 * 384**3 / (time.perf_counter() - began) < 10 * rates.operations_per_s
    assert (rates.threads, rates.dtype, rates.name) == (torch.get_num_threads(), "float32", "here")


def test_rates_are_kept_and_known_again(tmp_path):
    path = tmp_path / "machine.json"
    save_rates(RATES, path)
    assert read_rates(path) == RATES
    assert RATES.fits("cpu", "made up", "float32", 1, 4 * 2**20)
    assert not RATES.fits("cpu", "made up", "float32", 2, 4 * 2**20)
    assert "40 GB/s" in str(RATES) and "1 thread," in str(RATES)
    for text in ("{", "[]", json.dumps({"device": "cpu"})):
        path.write_text(text)
        assert read_rates(path) is None
    assert read_rates(tmp_path / "nowhere") is None


def at(weights: float, large: float, operations: float, spread: float) -> MachineRates:
    moment = Moment("2026-01-01T00:00:00+00:00", large, weights, operations, spread)
    return dataclasses.replace(
        RATES, large_bytes_per_s=large, step_bytes_per_s=weights, operations_per_s=operations,
        spread=spread, moments=(moment,),
    )  # fmt: skip


def test_of_several_moments_the_best_rates_count(tmp_path):
    busy, quiet = at(20e9, 9e9, 120e9, 0.4), at(40e9, 10e9, 100e9, 0.05)
    busier = at(10e9, 8e9, 80e9, 0.9)
    best = busy.joined(quiet).joined(busier)
    assert (best.step_bytes_per_s, best.large_bytes_per_s) == (40e9, 10e9)
    assert best.operations_per_s == 120e9 and best.bytes_per_s == 40e9
    assert best.spread == 0.4, "of the moments that the rates are of, not of the busiest"
    assert best.apart == pytest.approx(0.75) and len(best.moments) == 3
    assert "each the best of 3 moments, the slowest 75% lower" in str(best)
    assert "moments" not in str(quiet) and quiet.apart == 0
    save_rates(best, tmp_path / "machine.json")
    assert read_rates(tmp_path / "machine.json") == best


def test_an_older_machine_json_is_one_moment(tmp_path):
    path = tmp_path / "machine.json"
    save_rates(RATES, path)
    plain = json.loads(path.read_text())
    del plain["moments"]
    path.write_text(json.dumps(plain))
    found = read_rates(path)
    assert found == RATES
    best = found.joined(at(30e9, 5e9, 90e9, 0.1))
    assert best.step_bytes_per_s == RATES.step_bytes_per_s
    assert best.apart == pytest.approx(0.5) and len(best.moments) == 2


def test_a_host_that_reads_more_slowly_than_its_kind_has_shown_is_busy(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = replace(RATES, large_bytes_per_s=7e9)
    assert best_shown(slow) == 7e9 and best_shown(RATES) == 10e9 and best_shown(slow) == 10e9
    other = replace(slow, name="another")
    assert best_shown(other) == 7e9
    assert replace(slow, shown=10e9).busy and not replace(RATES, shown=10e9).busy
    assert "busy: this kind of host has shown 10 GB/s" in replace(slow, shown=10e9).rates
    (tmp_path / "lantern-bench" / "rates.json").write_text("[]")
    assert best_shown(slow) == 7e9, "what cannot be read is written anew"


def test_a_run_measures_the_machine_before_between_and_after_and_keeps_the_best(
    fake_study, monkeypatch
):
    seen = []

    def measured(device, dtype, weights, name, budget) -> MachineRates:
        seen.append(
            len({r["prompt_index"] for r in fakes.recorded(folder) if r["decoder"] == "ar"})
        )
        best = 9 if len(seen) == 2 else 3
        rates = at(best * 1e15, 1e15, 1e15, 0.1)  # no step is below its floor
        return dataclasses.replace(
            rates, dtype="float32", step_bytes=weights, name=name, device=str(device), threads=1
        )

    monkeypatch.setattr("bench.measure.machine.measure_rates", measured)
    config = fake_study(*REAL, "latency.blocks=2")
    folder = Path(config.run_dir)
    result = run_study(config)
    assert seen == [0, 1, 2], "before each block, and after the last"
    rates = read_rates(folder / "machine.json")
    assert rates is not None and rates.step_bytes_per_s == 9e15 and len(rates.moments) == 3
    run_study(config)
    assert len(seen) == 3, "nothing was timed again"
    (folder / "records.parquet").unlink()
    run_study(config)
    assert len(seen) == 4, "as if stopped after its last image, before the moment behind it"
    assert fakes.forget(folder, decoder="ar", protocol="latency", prompt_index=0)
    result = run_study(config)
    assert len(seen) == 6, "a session that times something measures too"
    finish(config, result)
    assert len(seen) == 6 and read_rates(folder / "machine.json").step_bytes_per_s == 9e15
    fair = pd.read_csv(folder / "roofline.csv")
    assert (fair.bytes_per_s == 9e15).all(), "the best of all sessions"


@pytest.mark.alone
def test_a_run_leaves_its_roofline_and_measures_the_machine_once(fake_study, monkeypatch):
    config = fake_study(*REAL)
    result = run_study(config)
    finish(config, result)
    table = pd.read_csv(result.path / "roofline.csv").set_index("decoder")
    rates = read_rates(result.path / "machine.json")
    assert rates is not None and rates.threads == 1 and rates.dtype == "float32"
    ar, tree = table.loc["ar"], table.loc["eagle2"]
    rows = result.rows[result.rows.decoder == "ar"]
    assert ar.ar_ms == pytest.approx(1e3 * (rows.seconds_forward / rows.nfe).median())
    net = target_net(result.model)
    assert ar.ar_floor_ms == pytest.approx(1e3 * net.work(2).floor_seconds(rates))
    quiet = 1e3 * (rows.seconds_forward / rows.nfe).quantile(0.1)
    assert ar.ar_over_floor == pytest.approx(quiet / ar.ar_floor_ms) and ar.ar_over_floor > 1
    assert math.isnan(ar.forward_ms) and math.isnan(ar.draft_ms) and math.isnan(ar.accept_share)
    assert tree.codes == 5 and math.isnan(tree.ar_ms)
    assert tree.ar_floor_ms == ar.ar_floor_ms < tree.forward_floor_ms
    assert tree.forward_over_floor > 1 and tree.draft_over_floor > 1 and 0 < tree.accept_share < 1
    calls = (result.rows.drafter_calls / result.rows.nfe)[result.rows.decoder == "eagle2"].mean()
    assert tree.step_floor_ms == pytest.approx(tree.forward_floor_ms + calls * tree.draft_floor_ms)
    assert tree.step_ms > tree.forward_ms and ar.step_floor_ms == ar.ar_floor_ms
    fair = pd.read_csv(result.path / "fairness.csv").set_index("decoder")
    assert list(fair.index) == ["ar", "eagle2"]

    def again(*_: object) -> MachineRates:
        raise AssertionError("the machine was measured a second time")

    monkeypatch.setattr("bench.measure.machine.measure_rates", again)
    finish(config, result)
    after = pd.read_csv(result.path / "roofline.csv").set_index("decoder")
    assert after.loc["ar"].ar_floor_ms == ar.ar_floor_ms


def test_a_step_that_is_one_graph_is_timed_as_a_whole(fake_study):
    """A backend that records the whole step charges no time to draft, forward and accept."""
    config = fake_study(*REAL)
    result = run_study(config)
    rows = result.rows.copy()
    for name in ("seconds_draft", "seconds_forward", "seconds_accept"):
        rows[name] = 0.0
    table = roofline(result.path, result.model, result.variants, rows).set_index("decoder")
    ar, tree = table.loc["ar"], table.loc["eagle2"]
    own = rows[rows.decoder == "ar"]
    whole = ((own.seconds_total - own.seconds_prefill) / own.nfe).median()
    assert ar.ar_ms == ar.step_ms == pytest.approx(1e3 * whole)
    assert ar.ar_over_floor > 1, "the fairness gate judges it all the same"
    assert math.isnan(tree.forward_ms) and math.isnan(tree.draft_ms)
    assert math.isnan(tree.accept_share) and tree.step_over_floor > 1


def test_a_plug_in_target_is_timed_without_a_floor(fake_study):
    config = fake_study("quality.images=0")
    result = run_study(config)
    finish(config, result)
    table = pd.read_csv(result.path / "roofline.csv").set_index("decoder")
    assert table.filter(like="floor").isna().all(axis=None)
    assert table.loc["fake_ar"].ar_ms >= 0 and table.loc["fake_spec"].forward_ms >= 0
    assert table.note.str.contains("FakeTarget has no `cfg`").all()
    assert not (result.path / "machine.json").exists(), "no floor asks for its rates"
    fair = pd.read_csv(result.path / "fairness.csv").set_index("decoder")
    assert (fair.verdict == "unknown").all()
    assert fair.reason.str.contains("no floor known").all()


def test_a_run_without_timed_images_has_no_roofline(fake_study):
    config = fake_study("latency.prompts=0")
    result = run_study(config)
    finish(config, result)
    assert not (result.path / "roofline.csv").exists()
    fair = pd.read_csv(result.path / "fairness.csv").set_index("decoder")
    assert fair.loc["fake_spec"].verdict == "unknown"
    assert fair.loc["fake_spec"].reason == "no image of fake_spec was timed"
    assert fakes.CALLS
