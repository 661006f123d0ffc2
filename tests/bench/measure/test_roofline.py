"""Floors: what a forward needs against counts of the real thing, and what a run writes of it."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.analyse.fairness import roofline
from bench.errors import FolderError
from bench.measure.roofline import MachineRates, work_of
from bench.run.study import finish, run_study
from bench.store.facts import Findings, Verdict, read_findings, write_findings
from decoders.models.random_weights import random_model
from metrics.scores import Score, Scores
from tests.bench import fakes
from tests.bench.gate.targets import gpt_model

RATES = MachineRates(40e9, 100e9)
MEASURE = "bench.run.session.measure_rates"
REAL = (
    "model=random24", "metric=none", "quality.images=0", "latency.prompts=2",
    "decoders=[ar,{decoder: eagle2, overrides: ['tree.depth=2','tree.top_k=2','tree.nodes=4']}]",
)  # fmt: skip


def real_work(target, rows: int, codes: int) -> tuple[int, int]:
    """Bytes of the cache half-way through an image, and operations of the matrix products that a
    forward over `codes` codes really runs there."""
    slots = target.prefix + target.length // 2 + codes
    cache = target.new_cache(rows, slots)
    ids = torch.zeros(rows, codes, dtype=torch.long)
    positions = torch.arange(codes).expand(rows, -1)
    mask = torch.ones(rows, codes, slots, dtype=torch.bool)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        target.logits(target.forward_codes(ids, positions, positions, mask, cache))
    return cache.data.nbytes, counter.get_total_flops()


@pytest.mark.parametrize(("rows", "codes"), [(1, 1), (2, 1), (2, 5)])
def test_operations_and_bytes_are_those_of_the_real_forward(rows, codes):
    target = random_model(vocab=24, grid=4, width=32, layers=3).target
    size, operations = work_of(target).forward(rows, codes)
    cached, flops = real_work(target, rows, codes)
    # Norm weights count as if they were products: less than one part in a hundred.
    assert operations == pytest.approx(flops, rel=0.01)
    read = [*target.layers.parameters(), target.output.weight]
    assert size == sum(p.nbytes for p in read) + cached


def test_a_causal_model_counts_its_layers_and_the_head_of_the_codes():
    target = gpt_model().target
    assert work_of(target).note == ""
    # Its biases count as if they were products.
    assert work_of(target).forward(2, 3)[1] == pytest.approx(real_work(target, 2, 3)[1], rel=0.05)


def test_a_target_that_names_no_layers_has_a_floor_of_its_parameters_and_a_hint(monkeypatch):
    target = gpt_model().target
    monkeypatch.setattr(target, "layers", None)
    work = work_of(target)
    tables = {m.weight for m in target.modules() if isinstance(m, nn.Embedding)}
    assert work.weight_bytes == sum(w.nbytes for w in {*target.parameters()} - tables)
    assert "counts all parameters of Gpt but embeddings" in work.note and "`output`" in work.note


def test_the_longer_time_is_the_floor():
    assert RATES.floor_ms(80e9, 1) == 2000 and RATES.floor_ms(1, 300e9) == 3000
    assert str(RATES) == "reads 40 GB/s, multiplies 100 Gflop/s"


def test_findings_are_known_again_and_a_damaged_file_is_refused(tmp_path):
    assert read_findings(tmp_path) == Findings()
    gate, scores = (
        {"ar": Verdict("exact", "as AR")},
        {"ar": Scores({"clip": Score(70.0, each=(69, 71))})},
    )
    found = Findings(RATES, work_of(gpt_model().target), gate, scores)
    write_findings(tmp_path, found)
    again = read_findings(tmp_path)
    clip = again.scores["ar"]["clip"]
    assert (again.machine, again.work, clip.each) == (RATES, found.work, (69, 71))
    assert math.isnan(again.scores["ar"]["fid"].value) and again.gate["ar"].detail == "as AR"
    damaged = "{", "[]", '{"machine": {"device": "cpu"}}', '{"scores": {"ar": {"clip": "x"}}}'
    says = dict.fromkeys(damaged, r"findings\.json is damaged")
    for text, message in (says | {'{"done": true, "done": false}': "names done twice"}).items():
        (tmp_path / "findings.json").write_text(text)
        with pytest.raises(FolderError, match=message):
            read_findings(tmp_path)


def test_a_run_measures_the_machine_before_between_and_after_and_keeps_the_best(
    fake_study, monkeypatch
):
    timed = []  # prompts of AR that were timed before each moment

    def measured(*_) -> dict[str, float]:
        timed.append(
            len({r["prompt_index"] for r in fakes.recorded(folder) if r["decoder"] == "ar"})
        )
        rate = 9e15 if len(timed) == 2 else 3e15  # no step is below its floor
        return {"step_bytes_per_s": rate, "operations_per_s": 1.2e16 - rate}

    monkeypatch.setattr(MEASURE, measured)
    config = fake_study(*REAL, "latency.blocks=2")
    folder = Path(config.run_dir)
    run_study(config)
    assert timed == [0, 1], "before each block"
    finish(run_study(config))
    assert len(timed) == 2, "nothing was timed again"
    best = MachineRates(9e15, 9e15)
    assert read_findings(folder).machine == best, "of all moments"
    assert (pd.read_csv(folder / "roofline.csv").bytes_per_s == 9e15).all()


def test_a_run_leaves_its_roofline(fake_run):
    _, result = fake_run(*REAL)
    finish(result)
    table = pd.read_csv(result.path / "roofline.csv").set_index("decoder")
    rates = read_findings(result.path).machine
    assert rates is not None
    ar, tree = table.loc["ar"], table.loc["eagle2"]
    rows = result.rows[result.rows.decoder == "ar"]
    assert ar.forward_ms == pytest.approx(1e3 * (rows.seconds_forward / rows.nfe).median())
    floor = rates.floor_ms(*work_of(result.model.target).forward(2))
    assert ar.forward_floor_ms == pytest.approx(floor)
    quiet = 1e3 * (rows.seconds_forward / rows.nfe).quantile(0.1)
    assert ar.forward_over_floor == pytest.approx(quiet / floor) and ar.forward_over_floor > 1
    assert ar.forward_ar_steps == 1 and math.isnan(ar.draft_ms)
    assert tree.forward_ar_steps == pytest.approx(tree.forward_ms / ar.forward_ms)
    assert tree.step_ar_steps == pytest.approx(tree.step_ms / ar.forward_ms)
    assert tree.codes == 5 and math.isnan(tree.ar_over_floor_least) and tree.draft_ms > 0
    assert ar.forward_floor_ms < tree.forward_floor_ms
    assert tree.step_over_floor > tree.forward_over_floor > 1
    assert list(pd.read_csv(result.path / "fairness.csv").decoder) == ["ar", "eagle2"]


def test_a_step_that_is_one_graph_is_timed_as_a_whole(fake_run):
    """A backend that captures the whole step charges no time to draft, forward and accept."""
    _, result = fake_run(*REAL)
    rows = result.rows.copy()
    for name in ("seconds_draft", "seconds_forward", "seconds_accept"):
        rows[name] = 0.0
    found, bases = read_findings(result.path), dict.fromkeys(("ar", "eagle2"), "ar")
    table = roofline(rows, bases, found.machine, found.work).set_index("decoder")
    ar, tree = table.loc["ar"], table.loc["eagle2"]
    steps = rows[rows.decoder == "ar"]
    whole = ((steps.seconds_total - steps.seconds_prefill) / steps.nfe).median()
    assert ar.forward_ms == ar.step_ms == pytest.approx(1e3 * whole)
    assert ar.forward_over_floor > 1, "the fairness gate judges it all the same"
    assert math.isnan(tree.forward_ms) and math.isnan(tree.draft_ms) and tree.step_over_floor > 1


def test_a_target_without_parameters_is_timed_without_a_floor(fake_study):
    config = fake_study("quality.images=0")
    result = run_study(config)
    finish(result)
    table = pd.read_csv(result.path / "roofline.csv").set_index("decoder")
    assert table.filter(like="floor").isna().all(axis=None)
    assert table.loc["fake_ar"].forward_ms >= 0 and table.loc["fake_spec"].forward_ms >= 0
    assert table.note.str.contains("FakeTarget has no parameters").all()
    assert read_findings(result.path).machine is None, "no floor asks for its rates"
    fair = pd.read_csv(result.path / "fairness.csv")
    assert (fair.verdict == "unknown").all() and fair.reason.str.contains("no floor known").all()
