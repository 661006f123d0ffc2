"""What others take of the processors, from a made /proc/stat and a made clock."""

import math
import os
import time
from pathlib import Path

import pytest

from bench.measure import busy
from bench.measure.busy import between, read

IDLE = "0 0 0 1000 50 0 0 0 0 0"


def machine(
    monkeypatch: pytest.MonkeyPatch, stat: Path, at: float, own: float, *cores: str
) -> busy.Reading:
    """A reading where the cores 1 and 3 are ours, at a time and processor time of this process."""
    lines = [f"cpu{number} {words}" for number, words in enumerate(cores)]
    stat.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 99"]) + "\n")
    monkeypatch.setattr(busy, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(busy, "perf_counter", lambda: at)
    monkeypatch.setattr(busy, "process_time", lambda: own)
    return read()


def test_what_this_process_has_not_used_others_have(monkeypatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    before = machine(monkeypatch, stat, 5.0, 1.0, IDLE, IDLE, IDLE, IDLE)
    # In 10 s: core 1 has 6 s user and 1 s nice, core 3 has 4 s system, 1 s irq and 2 s stolen.
    after = machine(
        monkeypatch, stat, 15.0, 5.0, "9999 " + IDLE, "600 100 0 1300 50 0 0 0 0 0",
        "9999 " + IDLE, "0 0 400 1300 50 50 50 200 0 0",
    )  # fmt: skip
    load = between(before, after)
    assert load.own == pytest.approx(0.4) and load.cores == 2
    assert load.others == pytest.approx((12 - 4) / 20), "cores of others are theirs"
    assert load.steal == pytest.approx(2 / 20) and load.taken == pytest.approx(0.5)
    assert load.disturbs(0.1, 2) and not load.disturbs(0.6, 2)
    assert not load.disturbs(1, 2), "1 allows any"


def test_the_launching_thread_of_a_gpu_needs_one_core_of_many() -> None:
    half = busy.Load(own=1.0, others=0.5, steal=0.0, blur=0.0, cores=16)
    assert half.disturbs(0.1, 16) and not half.disturbs(0.1, 1)
    full = busy.Load(own=1.0, others=0.97, steal=0.0, blur=0.0, cores=16)
    assert full.disturbs(0.1, 1)


def test_a_tick_of_a_short_span_is_no_neighbour(monkeypatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    before = machine(monkeypatch, stat, 0.0, 0.0, *[IDLE] * 4)
    tick = IDLE.replace("0", "1", 1)
    short = between(before, machine(monkeypatch, stat, 0.02, 0.0, IDLE, tick, IDLE, tick))
    assert short.others == pytest.approx(0.5) and not short.disturbs(0.1, 2)
    spun = between(before, machine(monkeypatch, stat, 0.5, 0.0, IDLE, "25 " + IDLE[2:], IDLE, IDLE))
    assert spun.disturbs(0.1, 2), "a quarter of the cores"


@pytest.mark.parametrize("text", [None, "cpu 1 2 3\ncpu1 1 2 3\ncpu3 1 2 3\n"])
def test_where_linux_does_not_say_nothing_is_known(monkeypatch, tmp_path: Path, text) -> None:
    monkeypatch.setattr(busy, "STAT", tmp_path / "stat")
    if text:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
        (tmp_path / "stat").write_text(text)
    load = between(read(), read())
    assert math.isnan(load.others) and math.isnan(load.steal)
    assert not load.disturbs(0.1, 2)


def test_work_of_this_process_is_its_own() -> None:
    before, until = read(), time.perf_counter() + 0.3
    while time.perf_counter() < until:
        pass
    load = between(before, read())
    assert 0 < load.own <= 1.1
    assert math.isnan(load.others) or 0 <= load.others < 1.1
