"""Processor load of other programs while images are timed, quotas of a container, and waiting until
the machine is quiet.

Why: a neighbour adds time to whatever it meets, unevenly, and the figures of such an hour look as
clean as any. Linux counts what every processor does (proc(5), /proc/stat); what this process has
not used of the busy time, others have. Steal is what a hypervisor gave to other guests, and what a
container's quota kept from this one. The counts come in ticks, so a span of a few milliseconds says
little.

An image during which others take more than `latency.busy` of the cores, or a quota stopped this
process at all, is *disturbed*. The run waits for quiet and times it again. What stays disturbed
counts for no figure of time (`bench.analyse.paired`). On a GPU the host's part is one thread that
launches the work: it suffers where no core is left.

A quota (`docker run --cpus N`) is no affinity: the process sees all cores, and the kernel stops its
threads for the rest of each period (100 ms) once they have used their time. Version 2 of control
groups says `quota period` in cpu.max, version 1 in two files; both count in cpu.stat what they held
back. A limit of a group holds for all groups below it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

LOOK = 1.0  # seconds: a quiet machine is one that is quiet for so long
STAT, TICK = Path("/proc/stat"), 1 / os.sysconf("SC_CLK_TCK")  # seconds of one count
BUSY, STEAL = (1, 2, 3, 6, 7), 8  # words of a line: user, nice, system, irq, softirq; steal
MEMBER, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
HELD_BACK = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # counts of cpu.stat -> seconds of one


@dataclass(frozen=True)
class Reading:
    """The counts at one moment, in seconds: the wall clock, processor time of this process with all
    its threads, busy and stolen time of the `cores` it may run on, NaN where it is not known.
    stopped: periods in which a quota stopped it."""

    at: float
    process: float
    busy: float
    steal: float
    cores: int
    stopped: int = 0


@dataclass(frozen=True)
class Load:
    """Between two readings. own: processor seconds of this process per second; others, steal:
    shares of its cores, 0 to 1, NaN where they are not known; disturbed: whether they took more
    than they may, or a quota stopped this process."""

    own: float
    others: float
    steal: float
    disturbed: bool


def read() -> Reading:
    """The counts now. Takes a tenth of a millisecond."""
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text().splitlines()]
    cores = [line for line in lines if line[0] in allowed]
    counted = bool(cores) and all(len(line) > STEAL for line in cores)
    busy = TICK * sum(int(line[at]) for line in cores for at in BUSY) if counted else math.nan
    steal = TICK * sum(int(line[STEAL]) for line in cores) if counted else math.nan
    stopped, seconds = held_back()
    return Reading(perf_counter(), process_time(), busy, steal + seconds, len(cores) or 1, stopped)


def between(before: Reading, after: Reading, limit: float = 1.0, one_core: bool = False) -> Load:
    """The load from one reading to a later one.

    limit: the share of the cores that others may take, 1: any; one_core: this process needs no more
    than one of them. A tick that others may have had is not held against them, nor is what cannot
    be known.
    """
    seconds = after.at - before.at
    room = seconds * after.cores  # processor seconds that there were
    process = after.process - before.process
    others = max(after.busy - before.busy - process, 0.0) if after.busy == after.busy else math.nan
    steal = after.steal - before.steal
    most = 1 - (1 - limit) / (after.cores if one_core else 1)
    crowded = (others + steal) / room - TICK / seconds > most
    disturbed = limit < 1 and (crowded or after.stopped > before.stopped)
    return Load(process / seconds, others / room, steal / room, disturbed)


def words(share: float) -> str:
    """`cores 48 % taken by others`."""
    return f"cores {100 * share:.0f} % taken by others"


def wait_for_quiet(patience: float, limit: float, one_core: bool) -> bool:
    """Waits until nothing has disturbed for `LOOK` seconds; whether that came within `patience`
    seconds. limit, one_core: as in `between`."""
    until, before = time.monotonic() + patience, read()
    while time.monotonic() + LOOK <= until:
        time.sleep(LOOK)
        after = read()
        if not between(before, after, limit, one_core).disturbed:
            return True
        before = after
    return False


# ---- a container's quota ------------------------------------------------------------------------


def groups() -> Iterator[Path]:
    """Folders of the control groups (cgroups) of this process, and of all groups above them. In a
    container the path may be the host's; then only the root exists."""
    for line in _text(MEMBER).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        place = root / path.strip("/")
        yield from (place, *place.parents[: len(place.parts) - len(root.parts)])


def quota() -> float:
    """Cores' worth of time that the quota allows; infinite where there is none."""
    least = math.inf
    for folder in groups():
        for names in QUOTAS:
            texts = " ".join(_text(folder / name) for name in names).split()
            if len(texts) == 2 and texts[0].isdecimal() and int(texts[1]):  # not "max", not -1
                least = min(least, int(texts[0]) / int(texts[1]))
    return least


def held_back() -> tuple[int, float]:
    """So far: periods in which a quota stopped this process's group, and for how many seconds."""
    periods, seconds = 0, 0.0
    for folder in groups():
        counted = _text(folder / "cpu.stat").split()
        counts = dict(zip(counted[::2], map(int, counted[1::2]), strict=True))
        periods += counts.get("nr_throttled", 0)
        seconds += sum(counts.get(name, 0) * unit for name, unit in HELD_BACK.items())
    return periods, seconds


def _text(path: Path) -> str:
    """Of a file; "" where there is none, or none that may be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
