"""A container's quota of processor time, from made control groups of both versions."""

import math
from pathlib import Path

import pytest

from bench.measure import busy, quota
from bench.measure.busy import Load, between
from bench.measure.device import available_cores


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(quota, "MEMBER", tmp_path / "member")
    monkeypatch.setattr(quota, "ROOT", tmp_path / "cgroup")
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(text + "\n")


def test_without_control_groups_there_is_no_quota(groups: Path) -> None:
    assert quota.cores() == math.inf and quota.held_back() == (0, 0)


def test_the_least_quota_of_a_group_and_those_above_it_holds(groups: Path, monkeypatch) -> None:
    (groups.parent / "member").write_text("0::/a/b\n")
    write(groups / "a" / "b", max="max 100000", stat="usage_usec 5\nnr_throttled 3\n"
          "throttled_usec 1500000")  # fmt: skip
    write(groups / "a", max="250000 100000", stat="nr_throttled 1\nthrottled_usec 500000")
    assert quota.cores() == 2.5
    assert quota.held_back() == (4, 2.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert available_cores() == 2
    write(groups / "a", max="30000 100000")
    assert available_cores() == 1, "less than one core is one thread"


def test_version_1_says_it_in_other_files_and_a_container_sees_its_root(groups: Path) -> None:
    (groups.parent / "member").write_text("7:cpuset:/\n4:cpu,cpuacct:/docker/0123\n")
    write(groups / "cpu", cfs_quota_us="150000", cfs_period_us="100000",
          stat="nr_periods 9\nnr_throttled 2\nthrottled_time 3000000000")  # fmt: skip
    assert quota.cores() == 1.5 and quota.held_back() == (2, 3.0)
    write(groups / "cpu", cfs_quota_us="-1")
    assert quota.cores() == math.inf


def test_an_image_during_which_the_quota_stopped_the_process_is_disturbed(groups: Path) -> None:
    (groups.parent / "member").write_text("0::/\n")
    write(groups, stat="nr_throttled 3\nthrottled_usec 0")
    before = busy.read()
    assert not between(before, busy.read()).stopped
    write(groups, stat="nr_throttled 4\nthrottled_usec 60000")
    found = between(before, busy.read())
    assert found.stopped
    quiet = Load(1.0, 0.0, 0.0, 0.0, 2, stopped=True)
    assert quiet.disturbs(0.1, 2) and not quiet.disturbs(1, 2), "1 allows any"
