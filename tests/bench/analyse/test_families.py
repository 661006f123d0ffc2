"""Curves of decoders that differ in one number of their rule."""

import math

import pytest

from bench.analyse.families import families
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Role, Run, Section


def entry(name: str, speedup: float, tv: float, lost: float) -> Entry:
    ends = {"speedup": speedup, "speedup_lo": speedup / 1.1, "speedup_hi": speedup * 1.1}
    line = {"status": "ok", "tv_output": tv, CLIP_LESS: -lost, **ends}
    return Entry(name, Role.DECODER, line, None, "", 0)


def made(
    entries: list[Entry], rules: dict[str, dict[str, object]], tmp_path
) -> tuple[Run, Section]:
    decoders = []
    for name, kwargs in rules.items():
        rule = {"target": "decoders.verify.lantern.Lantern", "kwargs": kwargs}
        decoders.append({"name": name, "spec": {"name": name, "acceptance": rule}, "sampling": {}})
    section = Section("one", entries, "FID", "CLIP")
    return Run(tmp_path, "sweep", [section], None, {"config": {"decoders": decoders}}), section


def test_a_family_differs_in_one_number_and_is_interpolated(tmp_path):
    rules = {f"lantern_d{d}": {"k": 64, "delta": d} for d in (0.4, 0.1, 0.2)}
    rules |= {"lantern_k8": {"k": 8, "delta": 0.9}, "other": {"k": 8, "delta": 0.3}}
    entries = [
        entry("lantern_d0.4", 2.0, 0.30, 2.0), entry("lantern_d0.1", 1.0, 0.10, -0.5),
        entry("lantern_d0.2", 1.5, 0.20, 0.5), entry("lantern_k8", 9, 0.2, 0),
        entry("other", 1, 0.2, 0),
    ]  # fmt: skip
    (family,) = families(*made(entries, rules, tmp_path))
    assert (family.name, family.setting) == ("lantern", "acceptance.delta")
    assert [e.name for e in family.entries] == ["lantern_d0.1", "lantern_d0.2", "lantern_d0.4"]
    middle = family.speed_at("tv", 0.25)
    assert middle.value == pytest.approx(math.sqrt(1.5 * 2.0))
    assert (middle.lo, middle.hi) == pytest.approx((middle.value / 1.1, middle.value * 1.1))
    assert family.speed_at("clip", 0.5).value == pytest.approx(1.5)
    assert math.isnan(family.speed_at("tv", 0.35).value), "was not run"


def test_of_several_crossings_the_fastest_counts(tmp_path):
    rules = {f"r_l{n}": {"lam": n} for n in (1, 2, 3)}
    entries = [entry("r_l1", 1.0, 0.1, 0), entry("r_l2", 1.2, 0.3, 0), entry("r_l3", 2.0, 0.1, 0)]
    (family,) = families(*made(entries, rules, tmp_path))
    assert family.speed_at("tv", 0.2).value == pytest.approx(math.sqrt(1.2 * 2.0))
