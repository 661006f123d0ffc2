"""The load of other programs in a container whose /proc/stat has other numbers of cores (lxcfs),
and where there is nothing to read."""

import logging
import os
from pathlib import Path

import pytest

from bench.measure import meter
from bench.measure.meter import Load, between, read

IDLE, ONE_SECOND = "0 0 0 0 0 0 0 0 0 0", "100 0 0 0 0 0 0 0 0 0"


def load(monkeypatch: pytest.MonkeyPatch, stat: Path, affinity: set[int], *lines: str) -> Load:
    """Of a second in which this process did nothing and each core that is listed was busy."""
    readings = []
    monkeypatch.setattr(meter, "STAT", stat)
    monkeypatch.setattr(meter, "TICK", 0.01)
    monkeypatch.setattr(meter, "process_time", lambda: 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    for at, words in ((1.0, IDLE), (2.0, ONE_SECOND)):
        monkeypatch.setattr(meter, "perf_counter", lambda at=at: at)
        total = " ".join(str(len(lines) * int(word)) for word in words.split())
        stat.write_text("\n".join([f"cpu  {total}", *(f"{line} {words}" for line in lines)]) + "\n")
        readings.append(read())
    return between(*readings, 0.1)


@pytest.mark.parametrize("affinity", [{0, 1}, {8, 9}, {1, 9}])
def test_a_container_that_numbers_its_cores_anew_is_busy_where_they_are(
    monkeypatch, tmp_path, affinity
):
    busy = load(monkeypatch, tmp_path / "stat", affinity, "cpu0", "cpu1")
    assert busy.others == pytest.approx(1.0) and busy.disturbed


def test_what_cannot_be_read_is_said_once(monkeypatch, tmp_path, caplog):
    meter.say_unreadable.cache_clear()
    with caplog.at_level(logging.WARNING):
        unknown = [load(monkeypatch, tmp_path / "stat", {8, 9}) for _ in range(3)]
    assert all(one.others != one.others for one in unknown)
    assert [record.message for record in caplog.records] == [
        f"the load of other programs cannot be read here ({tmp_path / 'stat'} lists no cores of "
        "this process): whether they disturb timings stays unknown"
    ]
