"""The fairness gate catches planted baselines: a slow one, and one that ran elsewhere."""

import math
from pathlib import Path

import pandas as pd
import pytest

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.config.schema import FairnessConfig
from bench.judge.fairness import SAME, judge, judge_folder, mixed
from bench.judge.roofline import roofline
from bench.measure.rates import MachineRates
from bench.run.finish import finish, unfinished
from bench.run.summary import COLUMNS
from decoders.api import DecoderError
from tests.bench.fakes import SEARCHPATH
from tests.bench.measure.test_floors import REAL

LIMITS = FairnessConfig()
FLOOR_MS = 0.5
COMPILED = "draft=compiled, forward=compiled, accept=compiled"


def rows(*changed: dict[str, object]) -> pd.DataFrame:
    """Three timed images of a baseline, of a decoder and of a greedy one; `changed` columns of the
    baseline and of the decoder."""
    made = []
    names = (("ar", 1.0), ("lantern", 1.0), ("lantern_greedy", 0.0))
    for (name, temperature), extra in zip(names, [*changed, {}, {}, {}], strict=False):
        where = {
            "backend": "cpu", "device": "cpu", "dtype": "bfloat16", "threads": 2, "cpu": "EPYC",
            "gpu": "", "path": "", "disturbed": False,
        }  # fmt: skip
        made += [
            {
                "decoder": name, "temperature": temperature, "cfg": 3.0, "protocol": "latency",
                "status": "ok", **where, **extra,
            }
        ] * 3  # fmt: skip
    return pd.DataFrame(made)


def floors(over: float, note: str = "") -> pd.DataFrame:
    """roofline.csv with a baseline that takes `over` floors a step."""
    line = {"decoder": "ar", "ar_ms": over * FLOOR_MS, "ar_floor_ms": FLOOR_MS}
    return pd.DataFrame([line | {"ar_over_floor": over, "note": note}])


def verdict(name: str, *args: object):
    return next(f for f in judge(*args, LIMITS) if f.decoder == name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("over", "said", "reason"),
    [
        (1.9, "fair", "in a quiet moment a step of ar takes 1.9 times its floor of 0.5 ms"),
        (19.0, "unfair", "takes 19.0 times its floor of 0.5 ms, at most 4 are fair"),
        # No step can take less: the rates that the floor is of were those of a busy machine.
        (0.8, "not measured", "a step of ar takes 0.4 ms, less than its floor of 0.5 ms"),
    ],
)
def test_a_baseline_is_judged_by_its_floor(over, said, reason):
    for name in ("ar", "lantern"):
        found = verdict(name, rows(), ["ar"], floors(over))
        assert found.verdict == said and reason in found.reason
        assert found.factor == over or (said == "not measured" and math.isnan(found.factor))


@pytest.mark.parametrize("column", SAME)
def test_a_baseline_that_ran_elsewhere_is_caught(column):
    found = verdict("lantern", rows({column: "another"}), ["ar"], floors(1.9))
    assert found.verdict == "unfair" and found.factor == 1.9
    assert found.reason.startswith(f"{column}: lantern ran on ")
    assert "ar on another" in found.reason
    assert verdict("ar", rows({column: "another"}), ["ar"], floors(1.9)).verdict == "fair"


def test_a_decoder_whose_own_rows_ran_in_two_ways_is_caught():
    mixed = rows()
    mixed.loc[mixed.index[-4], "threads"] = 1  # one image of lantern
    found = verdict("lantern", mixed, ["ar"], floors(1.9))
    assert found.verdict == "unfair" and "lantern ran on 1, 2, ar on 2" in found.reason


def test_both_faults_are_told():
    found = verdict("lantern", rows({"backend": "cuda_graph"}), ["ar"], floors(19.0))
    assert "ran on cpu, ar on cuda_graph" in found.reason and "19.0 times" in found.reason


def test_what_cannot_be_known_is_unknown_and_says_why():
    unmeasured = floors(math.nan, "no floor known: the target X has no `cfg`")
    found = verdict("lantern", rows(), ["ar"], unmeasured)
    assert found.verdict == "unknown" and found.reason.startswith("no floor known")
    assert math.isnan(found.factor)
    assert verdict("lantern", rows(), ["ar"], None).verdict == "unknown"
    elsewhere = verdict("lantern", rows({"gpu": "H100"}), ["ar"], unmeasured)
    assert elsewhere.verdict == "unfair", "another machine is unfair whatever the floor"
    alone = verdict("lantern_greedy", rows(), ["ar"], floors(1.9))
    assert (alone.verdict, alone.reason) == (
        "unknown", "no baseline at its temperature and guidance"
    )  # fmt: skip
    failed = rows({"status": "failed"})
    assert verdict("lantern", failed, ["ar"], floors(1.9)).reason == "no image of ar was timed"


@pytest.fixture
def real(fake_run):
    """A study and its rows, without tables and judgements."""
    return fake_run(*REAL)


def test_a_baseline_slowed_in_the_records_of_a_real_run_is_caught(real, monkeypatch):
    """The whole way, from records to fairness.csv: the same run, its AR steps ten times slower."""
    config, result = real
    summary = finish(config, result)
    assert list(summary.columns) == COLUMNS, "the contract of summary.csv holds"
    measured = pd.read_csv(result.path / "roofline.csv").set_index("decoder").loc["ar"]
    # Machine rates for which this very run is fair: its AR takes twice the floor.
    quiet = measured.ar_over_floor * measured.ar_floor_ms
    rates = MachineRates(
        "cpu", result.rows.cpu.iloc[0], "float32", 1, 2**28,
        measured.ar_bytes / (quiet / 2e3), int(1e9), 1.0, 1e15, 0.0, 1.0,
    )  # fmt: skip
    monkeypatch.setattr("bench.measure.machine.Watch.known", lambda _: rates)
    for slower, expected in ((1.0, "fair"), (10.0, "unfair")):
        planted = result.rows.copy()
        ar = planted.decoder == "ar"
        planted.loc[ar, "seconds_forward"] *= slower
        # A step of another decoder below its own floor (AR had a slow moment) would have the
        # machine measured again, and the verdict rest on this hour's rates.
        times = [column for column in planted if column.startswith("seconds_")]
        planted.loc[~ar, times] *= 100
        table = roofline(result.path, result.model, result.variants, planted)
        found = {f.decoder: f for f in judge(planted, config.baselines, table, LIMITS)}
        assert found["eagle2"].verdict == found["ar"].verdict == expected, found
        assert found["eagle2"].factor == pytest.approx(2 * slower)


@pytest.mark.alone
def test_a_finished_run_is_judged_again_under_another_limit(real, capsys):
    config, result = real
    finish(config, result)
    folder = Path(config.run_dir)
    factor = float(pd.read_csv(folder / "fairness.csv").factor.iloc[0])
    assert factor > 1
    for limit, expected in ((factor * 1.1, "fair"), (max(factor / 1.1, 1.0), "unfair")):
        found = judge_folder(
            folder, result.rows, config.baselines, FairnessConfig(limit, cpu=limit)
        )
        assert {f.verdict for f in found} == {expected}
        assert set(pd.read_csv(folder / "fairness.csv").verdict) == {expected}
    words = [*REAL, "study=fake", f"run_dir={folder}", f"fairness.factor={factor * 1.1}"]
    words.append(f"fairness.cpu={factor * 1.1}")
    assert main(["report", SEARCHPATH, *words]) == 0
    shown = capsys.readouterr().out
    assert (
        "Baselines are fair: in a quiet moment a step of ar takes" in shown
        and "unfair baseline" not in shown
    )


def test_the_limit_is_a_setting_and_changes_no_rows():
    plain, strict = (compose_study(["study=smoke", *w]) for w in ([], ["fairness.factor=2"]))
    assert (plain.fairness, strict.fairness) == (FairnessConfig(4.0), FairnessConfig(2.0))
    assert plain.hash == strict.hash, "the rows of a folder do not depend on it"
    assert plain.baselines == ["ar", "ar_greedy"]
    assert compose_study(["study=smoke", "fairness.cpu=3"]).hash == plain.hash
    for word in ("fairness.factor=abc", "fairness.factr=3"):
        with pytest.raises(DecoderError, match=r"fairness\.factor"):
            compose_study(["study=smoke", word])
    for bad in (1.0, 0.0, -3.0, math.inf):
        with pytest.raises(DecoderError, match=r"factor must be (above 1|a finite)"):
            FairnessConfig(bad)


def test_a_compiled_baseline_on_a_processor_is_fair_below_fewer_floors():
    seconds = dict.fromkeys(("seconds_draft", "seconds_forward", "seconds_accept"), 1.0)
    compiled = rows(*[{"path": "forward=compiled"}] * 2).assign(nfe=9, **seconds)
    card = compiled.assign(device="cuda")
    for over, expected in ((2.4, "fair"), (2.6, "unfair")):
        assert verdict("lantern", compiled, ["ar"], floors(over)).verdict == expected
        assert verdict("lantern", card, ["ar"], floors(over)).verdict == "fair"
        assert verdict("lantern", rows(), ["ar"], floors(over)).verdict == "fair"
    found = verdict("lantern", compiled, ["ar"], floors(2.6))
    assert "2.6 times its floor of 0.5 ms, at most 2.5 are fair" in found.reason


def test_a_step_of_the_decoder_below_its_floor_is_not_measured():
    own = pd.DataFrame(
        [
            {"decoder": "ar", "ar_ms": 1.0, "ar_floor_ms": 0.5, "ar_over_floor": 2.0},
            {"decoder": "lantern", "step_ms": 0.9, "step_floor_ms": 1.0, "step_over_floor": 0.9},
        ]
    )
    assert verdict("ar", rows(), ["ar"], own.assign(note="")).verdict == "fair"
    assert "a step of lantern" in verdict("lantern", rows(), ["ar"], own.assign(note="")).reason


@pytest.mark.parametrize("quiet_again", [True, False])
def test_rates_of_a_busy_moment_are_measured_again_and_then_give_no_speed_up(
    real, monkeypatch, quiet_again
):
    config, result = real
    (result.path / "machine.json").unlink(missing_ok=True)
    looks = []

    def measured(device, dtype, weights, name, budget) -> MachineRates:
        looks.append(name)
        quick = quiet_again and len(looks) > 1
        rate = 1e15 if quick else 1.0
        return MachineRates(
            "cpu", name, "float32", 1, 2**28, rate, weights, rate, 1e15, 0.0, 1.0
        )  # fmt: skip

    monkeypatch.setattr("bench.measure.machine.measure_rates", measured)
    summary = finish(config, result)
    assert len(looks) == 2
    found = pd.read_csv(result.path / "fairness.csv")
    assert (set(found.verdict) == {"not measured"}) == (not quiet_again)
    assert summary.speedup.notna().all() if quiet_again else summary.speedup.isna().all()


def test_an_unfinished_run_is_judged_by_what_its_ar_reads(real):
    config, result = real
    part = unfinished(config)
    assert part is not None
    finish(config, result)
    whole = pd.read_csv(result.path / "fairness.csv").set_index("decoder")
    for one in part.fairness.values():
        assert one.factor >= whole.factor[one.decoder] * 0.99, "a floor of the bytes alone is lower"
        assert "times its floor" in one.reason


def test_a_piece_that_ran_eagerly_is_marked_with_its_cost_and_what_it_would_be_worth():
    """A plug-in's rule that no compiler can trace, beside rules that were compiled."""
    seconds = {"seconds_draft": 0.2, "seconds_forward": 1.0, "seconds_accept": 0.4}
    lines = [
        {"decoder": "built_in", "path": COMPILED, "nfe": 4000},
        {
            "decoder": "mine",
            "path": COMPILED.replace("accept=compiled", "accept=eager"),
            "nfe": 400,
        },
        {"decoder": "other", "path": COMPILED, "nfe": 4000},
    ]
    timed = pd.DataFrame([{**line, **seconds} for line in lines])
    assert mixed(timed, "built_in") == mixed(timed, "other") == {}
    found = mixed(timed, "mine")
    assert found["mixed"] == "its acceptance ran eagerly, 1 of 4 ms per step"
    assert found["worth"] == pytest.approx(4 / 3.1)
    slow = timed.assign(seconds_forward=100 * timed.seconds_forward)
    assert mixed(slow, "mine")["mixed"].endswith("1 of 251.5 ms per step")
    all_eager = timed.assign(path="draft=eager, forward=eager, accept=eager")
    assert mixed(all_eager, "mine") == {}


def test_a_forward_below_its_floor_gives_no_speed_up():
    """A drafter that slows the clock of the run has such a forward."""
    own = {"decoder": "lantern", "forward_ms": 0.1, "forward_floor_ms": 0.5}
    table = pd.concat([floors(1.9), pd.DataFrame([own | {"forward_over_floor": 0.2}])])
    found = verdict("lantern", rows(), ["ar"], table)
    assert found.verdict == "not measured"
    assert "a target forward of lantern takes 0.1 ms, less than its floor" in found.reason
    assert verdict("ar", rows(), ["ar"], table).verdict == "fair"
