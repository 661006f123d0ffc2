"""`bench steps`: a step is timed together with its own matrix products, beside its floor."""

import dataclasses
import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.config.plugins import tree_sizes
from bench.cost.machine import measure_rates
from bench.cost.rates import NOISY
from bench.cost.work import Unknown, target_net
from bench.predict import steps
from bench.predict.steps import COLUMNS, ROUNDS, WARMUP, Line, notes, step_costs, step_table
from bench.report.table import filled
from decoders import pieces
from decoders.api import Sampling
from decoders.executed import executed
from decoders.execution.cpu.layers import NativeLayers, NativeLinear
from decoders.execution.cpu.speculation import NativeNext
from decoders.execution.eager import Eager, chain
from decoders.models.small import random_model
from decoders.pieces import ar_steps, linears
from tests.bench import fakes
from tests.decoders.execution.cpu.cases import needs_kernel


@pytest.mark.alone
def test_every_part_is_timed_and_costs_more_than_its_products_and_its_floor() -> None:
    model = random_model(vocab=64, grid=4, width=64, layers=3)
    with torch.inference_mode():
        costs = step_costs(model, Sampling(cfg=2.0), model.text.encode(["x"]), nodes=(1, 5))
    names = ["AR step", "forward over 4 nodes + root", "draft call (eagle)"]
    assert [c["step"] for c in costs] == names
    assert costs[2]["ms"] < costs[0]["ms"]  # one layer against three
    rates = measure_rates(torch.device("cpu"), model.dtype, target_net(model).weights_bytes, "here")
    table = step_table(costs, rates)
    assert table.floor_ms[0] < table.floor_ms[1] and 0 < table.floor_ms[2] < table.floor_ms[0]
    assert (table.factor > 1).all() and table.outside_products.between(0, 1).all()
    assert (table.over_floor > 1).all() and (table.bytes > 0).all()
    assert (table.fast_ms <= table.ms).all() and (table.fast_over_floor <= table.over_floor).all()
    assert table.ar_steps[0] == 1
    assert len(filled(COLUMNS, table.to_dict("records")).rows) == len(table)


@pytest.fixture(scope="module")
def costs() -> list[Line]:
    model = random_model(vocab=8, grid=2)
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "WARM", 0.0)
        return step_costs(model, Sampling(cfg=2.0), model.text.encode(["x"]), nodes=(1,))


def test_a_step_without_a_floor_shows_a_dash_and_says_why(costs: list[Line]) -> None:
    nothing = {"bytes": math.nan, "operations": math.nan, "note": str(Unknown("nobody knows"))}
    unknown = [c | nothing for c in costs]
    table = step_table(unknown, None)
    assert all(math.isnan(v) for v in (*table.floor_ms, *table.over_floor, *table.bytes))
    assert filled(COLUMNS, table.to_dict("records")).rows[0].cells[-1] == "—"
    assert "AR step: no floor known: nobody knows" in notes(unknown, None)


def test_a_noisy_machine_is_named(costs: list[Line]) -> None:
    assert all(c["spread"] > 0 for c in costs)
    quiet = [c | {"spread": NOISY / 2} for c in costs]
    assert not [line for line in notes(quiet, None) if "noisy" in line]
    loud = [quiet[0] | {"spread": 2 * NOISY}, *quiet[1:]]
    (line,) = [line for line in notes(loud, None) if "noisy" in line]
    assert "AR step 50 %" in line and "draft" not in line


@pytest.mark.alone
def test_the_command_saves_its_table_where_the_study_will_run(capsys, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        fakes.SEARCHPATH, "study=fake", "model=random24", f"run_dir={folder}", "decoders=[ar]",
        "quality.images=0", "latency.prompts=2", "backend.layers=torch",
    ]  # fmt: skip
    # By operators: the kernel's step of so small a model takes less than the one by which rates,
    # and so the floor, are measured.
    assert main(["steps", *words]) == 0
    shown = capsys.readouterr().out
    assert "AR step" in shown and "over floor" in shown and f"saved: {folder}/steps.csv" in shown
    table = pd.read_csv(folder / "steps.csv", keep_default_na=False)
    assert {"step", "ms", "spread", "products_ms", "outside_products", "floor_ms"} < {*table}
    assert (table.over_floor.astype(float) > 1).all() and (table.bytes_per_s > 0).all()
    assert main(["run", *words]) == 0, "a folder with steps.csv alone can be run in"
    assert (folder / "records.parquet").exists() and (folder / "steps.csv").exists()


def test_products_run_every_linear_layer_once() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    seen: list[int] = []
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda *_: seen.append(1))
    run = linears(random_model(), net, 3)
    with torch.profiler.profile() as profile:
        out = run()
    assert not seen  # the weights are multiplied, the modules are not called
    assert [tuple(o.shape) for o in out] == [(3, 1, 8), (3, 1, 4)]
    calls = {e.key: e.count for e in profile.key_averages()}
    assert calls["aten::linear"] == 2


@pytest.mark.alone
@needs_kernel
def test_in_the_cpu_kernel_the_products_are_the_kernels_own(monkeypatch) -> None:
    """No F.linear, whose time says nothing of the kernel's."""
    multiplied: list[tuple[int, int]] = []
    asked_for: list[tuple[int, ...]] = []
    linear, products = NativeLinear.products, NativeLayers.products

    def counted(self, rows):
        multiplied.append((self.inputs, self.outputs))
        return linear(self, rows)

    def asked(self, *shape):
        asked_for.append(shape)
        return products(self, *shape)

    monkeypatch.setattr(steps, "WARM", 0.0)
    monkeypatch.setattr(NativeLinear, "products", counted)
    monkeypatch.setattr(NativeLayers, "products", asked)
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *_: pytest.fail("a slower product"))
    model = random_model(vocab=64, grid=4, width=64, layers=3)
    model = executed(model, "cpu")
    with torch.inference_mode():
        text = model.target.cls_embedding  # its own products are PyTorch's, and not in a step
        monkeypatch.setattr(text, "forward", lambda *_: torch.zeros(2, 4, 64))
        costs = step_costs(model, Sampling(cfg=2.0), model.text.encode(["x"]), nodes=(1, 5))
    # R rows of T queries: AR, a root and 4 nodes, the drafter; then with attention over S slots.
    assert asked_for == [(2, 1, 0), (2, 1, 13), (2, 5, 0), (2, 5, 17), (2, 1, 0), (2, 1, 12)]
    assert {(64, 64), (128, 64)} <= {*multiplied}  # the head, the drafter's fc
    assert all(0 < c["products_ms"] < c["ms"] and c["attention_ms"] > 0 for c in costs)


@needs_kernel
def test_ar_steps_are_so_many_a_call_as_generate_takes(monkeypatch) -> None:
    """Half of them before the middle of the image, again and again; one a call without the kernel,
    and where one is all that there is time for."""
    taken = []
    call = NativeNext.__call__

    def counted(self: NativeNext, count: int = 1) -> None:
        taken.append((int(self._call.held["place"]), count))
        call(self, count)

    monkeypatch.setattr(NativeNext, "__call__", counted)
    monkeypatch.setattr(pieces, "CALL", 1e6)
    model = random_model(vocab=8, grid=8)
    text = model.text.encode(["x"])
    with torch.inference_mode():
        assert ar_steps(model, Sampling(cfg=2.0), text).count == 1 and not taken
        model = executed(model, "cpu")
        calls = ar_steps(model, Sampling(cfg=2.0), text)
        taken.clear()
        for _ in range(3):
            calls()
        assert calls.count == 32 and taken == [(16, 32)] * 3
        monkeypatch.setattr(pieces, "CALL", 0.0)
        calls = ar_steps(model, Sampling(cfg=2.0), text)
        taken.clear()
        for _ in range(10):
            calls()
    assert calls.count == 1
    assert taken == [(32 + i % pieces.AHEAD, 1) for i in range(10)]


def test_steps_run_as_the_models_backend_runs_them(monkeypatch) -> None:
    monkeypatch.setattr(steps, "WARM", 0.0)

    class Counting(Eager):
        """Eager, and counts what it was asked for."""

        name = "counting"

        def __init__(self) -> None:
            self.begun: list[str] = []
            self.steps = 0

        def begin(self, loop, run):
            self.begun.append(type(loop).__name__)
            return run

        def step(self, loop, run):
            self.steps += 1
            return chain(loop.pieces(), run)

    backend = Counting()
    model = dataclasses.replace(random_model(vocab=8, grid=2), execution=backend)
    with torch.inference_mode():
        step_costs(model, Sampling(cfg=2.0), model.text.encode(["x"]), nodes=(1,))
    assert backend.begun == ["Autoregressive", "Alone", "Alone", "Alone"]
    assert backend.steps == 2 * 4 * (ROUNDS + WARMUP)  # each is timed after its like


def test_the_trees_of_the_study_are_measured() -> None:
    config = compose_study(["study=replay"])
    assert tree_sizes(config.decoders) == (57,)
    assert tree_sizes(compose_study(["study=speed", "decoders=[ar]"]).decoders) == ()
