"""Curves of decoders that differ in one number of their rule."""

import math

import pytest

from bench.analyse.contrast import equal_loss, families, fastest_within
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Run
from metrics.stats import Interval
from tests.bench.compare.made_runs import AR, BASE, changed, part, run_of, still


def entry(name: str, speedup: float, tv: float, lost: float, width: float = 0) -> Entry:
    return changed(
        still(name, speedup),
        speedup=Interval(speedup, speedup / 1.1, speedup * 1.1),
        tv_output=Interval(tv, tv - width, tv + width),
        **{CLIP_LESS: Interval(-lost, -lost - width, width - lost)},
    )


def made(entries: list[Entry], rules: dict[str, dict[str, object]]) -> Run:
    rule = "verify.lantern.Lantern"
    specs = {name: BASE | {"acceptance": part(rule, **rules[name])} for name in rules}
    return run_of(specs, entries)


def test_a_family_differs_in_one_number_and_is_interpolated():
    rules = {f"lantern_d{d}": {"k": 64, "delta": d} for d in (0.4, 0.1, 0.2)}
    rules |= {"lantern_k8": {"k": 8, "delta": 0.9}, "other": {"k": 8, "delta": 0.3}}
    entries = [
        entry("lantern_d0.4", 2.0, 0.30, 2.0), entry("lantern_d0.1", 1.0, 0.10, -0.5),
        entry("lantern_d0.2", 1.5, 0.20, 0.5), entry("lantern_k8", 9, 0.2, 0),
        entry("other", 1, 0.2, 0),
    ]  # fmt: skip
    (family,) = families(made(entries, rules))
    assert (family.name, family.setting) == ("lantern", "acceptance.delta")
    assert [e.name for e in family.entries] == ["lantern_d0.1", "lantern_d0.2", "lantern_d0.4"]
    middle = family.speed_at("tv", 0.25)
    assert middle.value == pytest.approx(math.sqrt(1.5 * 2.0))
    assert (middle.lo, middle.hi) == pytest.approx((middle.value / 1.1, middle.value * 1.1))
    assert family.speed_at("clip", 0.5).value == pytest.approx(1.5)
    assert math.isnan(family.speed_at("tv", 0.35).value), "was not run"


def test_decoders_that_sample_in_another_way_are_of_no_family():
    """Of one section, as their temperature and guidance are equal."""
    names = [f"lantern_d{d}" for d in (0.1, 0.2, 0.4)]
    rules = {name: {"delta": float(name[-3:])} for name in names}
    run = made([entry(name, 1.5, 0.2, 0) for name in names], rules)
    assert len(families(run)) == 1
    run.identity["config"]["decoders"][0]["sampling"] = {"top_k": 100}
    assert not families(run)


def curve(points: list[tuple[float, float]], width: float = 0):
    """A family of (speed-up, loss), each loss plus or minus `width`."""
    rules = {f"r_l{n}": {"lam": n} for n in range(len(points))}
    entries = [
        entry(name, speed, at, at, width) for name, (speed, at) in zip(rules, points, strict=True)
    ]
    (family,) = families(made(entries, rules))
    return family


def test_a_loss_that_is_met_twice_is_not_told():
    family = curve([(1.0, 0.1), (1.2, 0.3), (2.0, 0.1)])
    assert math.isnan(family.speed_at("tv", 0.2).value)
    once = curve([(1.0, 0.1), (1.2, 0.2), (2.0, 0.3)])
    assert once.speed_at("tv", 0.2).value == pytest.approx(1.2), "a setting of its own is met once"


def test_the_interval_at_equal_loss_counts_that_of_the_loss():
    points = [(1.0, 0.1), (1.5, 0.2), (2.0, 0.3)]
    sharp, wide, noise = (curve(points, width).speed_at("clip", 0.25) for width in (0, 0.03, 0.08))
    along = math.log(2.0 / 1.5) / 0.1 * 0.03
    assert math.log(wide.hi / wide.value) == pytest.approx(math.hypot(math.log(1.1), along))
    assert math.log(sharp.hi / sharp.value) == pytest.approx(math.log(1.1))
    assert math.isnan(noise.value), "a line between settings that are not told apart is noise"
    near = curve(points, 0.03)
    lines = [line for line in equal_loss([near]) if line["figure"] == "clip"]
    assert not any(line["met"] for line in lines), "0 and 0.5 are outside"


@pytest.mark.parametrize(
    ("settings", "answers"),
    [
        # (speed-up, output TV): an interval reaches from 10 % below to 10 % above
        ([(1.05, 0.1), (1.5, 0.2), (0.8, 0.02)],
         [(0.0, "ar", ""), (0.1, "ar", "r_l0"), (0.2, "r_l1", "")]),
        ([(0.7, 0.1), (0.8, 0.2)], [(0.0, "ar", "")]),
        ([(1.3, 0.0), (1.2, 0.2), (1.4, 0.3)], [(0.0, "r_l0", ""), (0.3, "r_l2", "r_l0, r_l1")]),
    ],
)  # fmt: skip
def test_ar_is_the_answer_where_nothing_within_an_output_tv_is_faster(settings, answers):
    rules = {f"r_l{n}": {"lam": n} for n in range(len(settings))}
    entries = [entry(name, *at, 0.0) for name, at in zip(rules, settings, strict=True)]
    run = made([still("ar", 1.0), *entries], rules)
    run.identity["config"]["decoders"].append({"name": "ar", "spec": AR, "sampling": {}})
    lines = [(line["at_most"], line["fastest"], line["or_"]) for line in fastest_within(run)]
    assert [line[:2] for line in lines] == [answer[:2] for answer in answers]
    for line, answer in zip(lines, answers, strict=True):
        assert answer[1] != "ar" or line[2] == answer[2]
