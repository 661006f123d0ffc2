"""The fairness gate catches planted baselines that are slow, and clocks that are wrong."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from bench.analyse.fairness import AR_BY_BLOCK, judge, mixed
from bench.measure.roofline import MachineRates
from bench.run.study import finish
from bench.store.facts import read_findings, write_findings
from tests.bench.measure.test_roofline import MEASURE, REAL

FLOOR_MS = 0.5
COMPILED = "draft=compiled, forward=compiled, accept=compiled"


def rows(**changed: object) -> pd.DataFrame:
    """Three timed images of a baseline, of a decoder and of a greedy one."""
    every = {
        "cfg": 3.0, "protocol": "latency", "status": "ok", "device": "cpu", "path": "",
        "disturbed": False, "cpu_others": 0.01, "cpu_steal": 0.0, **changed,
    }  # fmt: skip
    names = (("ar", 1.0), ("lantern", 1.0), ("lantern_greedy", 0.0))
    lines = [{"decoder": name, "temperature": heat, **every} for name, heat in names]
    return pd.DataFrame([line for line in lines for _ in range(3)])


def floors(over: float, note: str = "", **lantern: float) -> pd.DataFrame:
    """roofline.csv with a baseline that takes `over` floors per step."""
    line = {"decoder": "ar", "forward_over_floor": over, "forward_floor_ms": FLOOR_MS, "note": note}
    line |= dict.fromkeys(AR_BY_BLOCK, over)
    return pd.DataFrame([line, {"decoder": "lantern", **lantern}])


def verdict(name: str, rows: pd.DataFrame, roofline: pd.DataFrame) -> tuple[str, str]:
    baselines = {"ar": "ar", "lantern": "ar", "lantern_greedy": None}
    found = judge(rows, baselines, roofline)
    return next((f.verdict, f.reason) for f in found if f.decoder == name)


@pytest.mark.parametrize(
    ("over", "said", "reason"),
    [
        (1.9, "fair", "in a quiet moment a step of ar takes 1.9 times its floor of 0.5 ms"),
        (19.0, "unfair", "takes 19.0 times its floor of 0.5 ms, at most 4 are fair"),
        # No step can take less: the rates that the floor is of were those of a busy machine.
        (0.8, "not measured", "a step of ar takes 0.8 times its floor: the machine was busy"),
        (math.nan, "unknown", "no floor known: the target X has no parameters"),
    ],
)
def test_a_baseline_is_judged_by_its_floor(over, said, reason):
    for name in ("ar", "lantern"):
        found = verdict(name, rows(), floors(over, reason))
        assert found[0] == said and reason in found[1]


def test_the_verdict_says_how_far_blocks_differ():
    table = floors(2.2).assign(ar_over_floor_least=2.1, ar_over_floor_greatest=2.7)
    found, reason = verdict("lantern", rows(), table)
    assert found == "fair" and "2.2 times its floor of 0.5 ms (from block to block 2.1" in reason


def test_what_cannot_be_known_is_unknown_and_says_why():
    alone = verdict("lantern_greedy", rows(), floors(1.9))
    assert alone == ("unknown", "no baseline at its temperature and guidance")
    failed = verdict("lantern", rows(status="failed"), floors(1.9))
    assert failed == ("unknown", "no image of lantern was timed")


def test_a_compiled_baseline_on_a_processor_is_fair_below_fewer_floors():
    compiled = rows(path="forward=compiled")
    for over, expected in ((2.4, "fair"), (2.6, "unfair")):
        found, reason = verdict("lantern", compiled, floors(over))
        assert found == expected and ("at most 2.5 are fair" in reason) == (found == "unfair")
        for others in (compiled.assign(device="cuda"), rows()):
            assert verdict("lantern", others, floors(over))[0] == "fair"


def test_steps_that_others_slowed_say_nothing_of_the_baseline():
    """Where `latency.busy` lets others take the cores; a GPU's steps do not suffer."""
    timed = rows(cpu_others=0.8)
    why = "the machine was busy all the time (cores 80 % taken by others)"
    assert verdict("lantern", timed, floors(19.0)) == ("unknown", why)
    assert verdict("lantern", timed.assign(device="cuda"), floors(19.0))[0] == "unfair"
    timed.loc[timed.decoder == "ar", "cpu_others"] = [0.8, 0.0, 0.0]
    assert verdict("lantern", timed, floors(19.0))[0] == "unfair", "most were quiet"


@pytest.mark.parametrize("part", ["step", "forward"])
def test_a_step_or_forward_of_the_decoder_below_its_floor_gives_no_speed_up(part):
    table = floors(1.9, **{f"{part}_over_floor": 0.9})
    found, reason = verdict("lantern", rows(), table)
    assert found == "not measured" and "step of lantern takes 0.9 times its floor" in reason
    assert verdict("ar", rows(), table)[0] == "fair"


def test_a_piece_that_ran_eagerly_beside_compiled_ones_is_marked():
    """A plug-in's rule that no compiler can trace, beside rules that were compiled."""
    slow = COMPILED.replace("accept=compiled", "accept=eager")
    timed = pd.DataFrame({"decoder": ["built_in", "mine"], "path": [COMPILED, slow]})
    assert mixed(timed, "built_in") == ""
    assert mixed(timed, "mine") == "its acceptance ran eagerly, where others' ran compiled"
    assert mixed(timed.assign(path="draft=eager, forward=eager, accept=eager"), "mine") == ""


@pytest.fixture
def real(fake_run):
    """A study and its rows, without tables and judgements."""
    return fake_run(*REAL)


@pytest.mark.parametrize("step_bytes", [1e15, 1.0])
def test_a_slow_baseline_of_a_real_run_is_caught_and_rates_of_a_busy_moment_are_measured_again(
    real, monkeypatch, step_bytes
):
    """Where the machine is as busy as before, no step can be so fast, and no speed-up is shown."""
    _, result = real
    busy = MachineRates(1.0, 1e15)
    write_findings(result.path, replace(read_findings(result.path), machine=busy))
    again = {"step_bytes_per_s": step_bytes, "operations_per_s": 1e15}
    monkeypatch.setattr(MEASURE, lambda *_: again)
    result.rows = result.rows.assign(cpu_others=0.0)
    run = finish(result)
    found = pd.read_csv(result.path / "fairness.csv")
    slow = step_bytes > 1
    assert set(found.verdict) == {"unfair" if slow else "not measured"}
    assert {math.isnan(entry.number("speedup")) for entry in run.entries} == {not slow}
