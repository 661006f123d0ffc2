"""What others take of the processors, from a made /proc/stat, a made clock and made control groups
of both versions; in a container whose /proc/stat has other numbers of cores (lxcfs)."""

import logging
import math
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from bench.measure import meter
from bench.measure.device import available_cores
from bench.measure.meter import Load, Reading, between, held_back, quota, read

IDLE = "0 0 0 1000 50 0 0 0 0 0"


def machine(
    monkeypatch: pytest.MonkeyPatch,
    stat: Path,
    at: float,
    own: float,
    *cores: str,
    ours: frozenset[int] = frozenset({1, 3}),
) -> Reading:
    """A reading with these cores of ours, at a time and processor time of this process."""
    each = [sum(int(words.split()[at]) for words in cores) for at in range(10)]
    lines = [f"cpu{number} {words}" for number, words in enumerate(cores)]
    stat.write_text("\n".join([f"cpu  {' '.join(map(str, each))}", *lines, "ctxt 99"]) + "\n")
    monkeypatch.setattr(meter, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: ours)
    monkeypatch.setattr(meter, "TICK", 0.01)
    monkeypatch.setattr(meter, "perf_counter", lambda: at)
    monkeypatch.setattr(meter, "process_time", lambda: own)
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
    assert load.own == pytest.approx(0.4)
    assert load.others == pytest.approx((12 - 4) / 20), "cores of others are theirs"
    assert load.steal == pytest.approx(2 / 20)
    limits = {limit: between(before, after, limit).disturbed for limit in (0.1, 0.6, 1)}
    assert limits == {0.1: True, 0.6: False, 1: False}, "1 allows any"


@pytest.mark.parametrize(("taken", "disturbed"), [(0.5, False), (0.97, True)])
def test_the_launching_thread_of_a_gpu_needs_one_core_of_many(taken, disturbed) -> None:
    before, after = Reading(0.0, 0.0, 0.0, 0.0, 16), Reading(10.0, 0.0, 160 * taken, 0.0, 16)
    assert between(before, after, 0.1).disturbed
    assert between(before, after, 0.1, one_core=True).disturbed == disturbed


def test_a_tick_of_a_short_span_is_no_neighbour(monkeypatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    before = machine(monkeypatch, stat, 0.0, 0.0, *[IDLE] * 4)
    tick = IDLE.replace("0", "1", 1)
    short = between(before, machine(monkeypatch, stat, 0.02, 0.0, IDLE, tick, IDLE, tick), 0.1)
    assert short.others == pytest.approx(0.5) and not short.disturbed
    after = machine(monkeypatch, stat, 0.5, 0.0, IDLE, "25 " + IDLE[2:], IDLE, IDLE)
    assert between(before, after, 0.1).disturbed, "a quarter of the cores"


@pytest.mark.parametrize(
    ("process", "others", "disturbed"),
    [(0.8, 0.0, True), (2.9, 0.0, True), (5.5, 0.0, False), (12.0, 0.0, False), (0.8, 5.0, False)],
)
def test_a_span_in_which_nobody_ran_for_the_most_part_is_a_stop(process, others, disturbed) -> None:
    """Of a container that was paused: no signal comes."""
    before, after = Reading(0, 0, 0, 0, 2), Reading(6.4, process, process + others, 0, 2)
    assert between(before, after, 0.9).disturbed == disturbed
    assert not between(before, after, 1).disturbed
    assert not between(before, after, 0.9, one_core=True).disturbed, "it may wait for a GPU"
    assert not between(before, after, 0.9, works=False).disturbed, "while the run waits for quiet"


def test_a_stop_by_a_signal_disturbs_however_short_it_was() -> None:
    """As Ctrl-Z, and a scheduler that suspends a job."""
    one = meter.Meter(torch.device("cpu"), busy=0.9)
    for stopped in (False, True):
        with one.time("total"):
            if stopped:
                os.kill(os.getpid(), signal.SIGCONT)  # what a process is sent that was stopped
            until = time.process_time() + 0.05
            while time.process_time() < until:
                pass
        assert one.load.disturbed == stopped or one.load.others > 0.9


@pytest.mark.parametrize(
    "text", ["cpu 1 2 3\ncpu1 1 2 3\ncpu3 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "", None]
)
def test_where_linux_does_not_say_nothing_is_known(monkeypatch, tmp_path: Path, text) -> None:
    monkeypatch.setattr(meter, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    if text is not None:  # it is not there for a service that may see no more than processes
        (tmp_path / "stat").write_text(text)
    load = between(read(), read(), 0.1)
    assert math.isnan(load.others) and math.isnan(load.steal)
    assert not load.disturbed


def busy_second(monkeypatch: pytest.MonkeyPatch, stat: Path, ours: set[int], cores: int) -> Load:
    """Of a second in which this process did nothing and each core that is listed was busy."""
    before, after = (
        machine(monkeypatch, stat, at, 0.0, *[ticks + " 0" * 9] * cores, ours=frozenset(ours))
        for at, ticks in ((1.0, "0"), (2.0, "100"))
    )
    return between(before, after, 0.1)


@pytest.mark.parametrize("ours", [{0, 1}, {8, 9}, {1, 9}])
def test_a_container_that_numbers_its_cores_anew_is_busy_where_they_are(
    monkeypatch, tmp_path, ours
) -> None:
    busy = busy_second(monkeypatch, tmp_path / "stat", ours, cores=2)
    assert busy.others == pytest.approx(1.0) and busy.disturbed


def test_what_cannot_be_read_is_said_once(monkeypatch, tmp_path, caplog) -> None:
    meter.say_unreadable.cache_clear()
    with caplog.at_level(logging.WARNING):
        unknown = [busy_second(monkeypatch, tmp_path / "stat", {8, 9}, 0) for _ in range(3)]
    assert all(one.others != one.others for one in unknown)
    assert [record.message for record in caplog.records] == [
        f"the load of other programs cannot be read here ({tmp_path / 'stat'} lists no cores of "
        "this process): whether they disturb timings stays unknown"
    ]


# ---- a container's quota ------------------------------------------------------------------------


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(meter, "MEMBER", tmp_path / "member")
    monkeypatch.setattr(meter, "CONTROL_GROUPS", tmp_path / "cgroup")
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(text + "\n")


def test_without_control_groups_there_is_no_quota(groups: Path) -> None:
    assert quota() == math.inf and held_back() == (0, 0)


def test_the_least_quota_of_a_group_and_those_above_it_holds(groups: Path, monkeypatch) -> None:
    (groups.parent / "member").write_text("0::/a/b\n")
    write(groups / "a" / "b", max="max 100000", stat="usage_usec 5\nnr_throttled 3\n"
          "throttled_usec 1500000")  # fmt: skip
    write(groups / "a", max="250000 100000", stat="nr_throttled 1\nthrottled_usec 500000")
    assert quota() == 2.5
    assert held_back() == (4, 2.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert available_cores() == 2
    write(groups / "a", max="30000 100000")
    assert available_cores() == 1, "less than one core is one thread"


def test_version_1_says_it_in_other_files_and_a_container_sees_its_root(groups: Path) -> None:
    (groups.parent / "member").write_text("7:cpuset:/\n4:cpu,cpuacct:/docker/0123\n")
    write(groups / "cpu", cfs_quota_us="150000", cfs_period_us="100000",
          stat="nr_periods 9\nnr_throttled 2\nthrottled_time 3000000000")  # fmt: skip
    assert quota() == 1.5 and held_back() == (2, 3.0)
    write(groups / "cpu", cfs_quota_us="-1")
    assert quota() == math.inf


def test_an_image_during_which_the_quota_stopped_the_process_is_disturbed(groups: Path) -> None:
    (groups.parent / "member").write_text("0::/\n")
    write(groups, stat="nr_throttled 3\nthrottled_usec 0")
    before, again = read(), read()
    assert before.stopped == again.stopped == 3 + len(meter.CONTINUED)
    write(groups, stat="nr_throttled 4\nthrottled_usec 60000")
    stopped = read()
    assert between(before, stopped, 0.1).disturbed and not between(before, stopped).disturbed
