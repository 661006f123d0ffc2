"""The meter of a decoder's call: seconds of its parts, peak memory, and what other programs took of
the processors meanwhile.

Seconds: a CUDA call returns before its work is done, so the device is synchronised before and after
each part; without that the time is that of the launch (a fault of the released timing code). The
garbage collector is off during a call, because its pauses hit whoever happens to run.

Memory: that of the device on CUDA, else the resident memory of this process, whose high-water mark
Linux resets on request (/proc/self/clear_refs), NaN where it cannot be reset. Where steps are CUDA
graphs it is what PyTorch has reserved: a captured step allocates nothing while it runs, its memory
was set aside when it was captured.

Load: figures of an hour with neighbours look as clean as any. Linux counts what every processor
does (/proc/stat); what this process has not used of the busy time, others have. Steal is what a
hypervisor gave to other guests, and what a container's quota kept from this one. docs/running.md,
"A busy machine", says which images are *disturbed*. A quota's stops are counted, those of Ctrl-Z
and schedulers end with a signal, and in a container that was paused nobody has had most of the
time. On a GPU the host's part is one thread that launches the work: it suffers where no core is
left.

A quota (`docker run --cpus N`) is no affinity: the kernel stops threads for the rest of each period
(100 ms) once they have used their time. Version 2 of control groups says `quota period` in cpu.max,
version 1 in two files; both count in cpu.stat what they held back, and hold for groups below.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from time import perf_counter, process_time

import torch

from bench.measure.card import CardState, open_card

log = logging.getLogger(__name__)
CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MB = 1e6
QUIET_SECONDS = 1.0  # that a quiet machine is quiet
STAT, TICK = Path("/proc/stat"), 1 / os.sysconf("SC_CLK_TCK")  # seconds of one count
BUSY_FIELDS, STEAL_FIELD = (1, 2, 3, 6, 7), 8  # user, nice, system, irq, softirq; steal
MEMBER, CONTROL_GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
CONTINUED: list[int] = []  # signals that ended a stop of this process
HELD_BACK = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # counts of cpu.stat -> seconds of one


@dataclass(frozen=True)
class Reading:
    """The counts at one moment, in seconds: the wall clock, processor time of this process with all
    its threads, busy and stolen time of the `cores` it may run on, NaN where it is not known.
    stopped: periods in which a quota stopped it, and stops by a signal."""

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


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Meter:
    """Measures calls on one device. Of the last call: started: when it began; seconds: of its
    parts, by name; load: of the processors during its decoding; card_state: of the card at its end;
    peak_mb: its peak memory in megabytes (1e6 bytes). busy: `latency.busy`; captured: whether steps
    are CUDA graphs."""

    def __init__(self, device: torch.device, busy: float = 1.0, captured: bool = False) -> None:
        self.device, self.busy, self.captured = device, busy, captured
        self.on_gpu = device.type == "cuda"
        self.started, self.peak_mb = "", math.nan
        self.seconds: dict[str, float] = {}
        self.load = Load(math.nan, math.nan, math.nan, False)
        self.card, self.card_state = open_card(device), CardState()
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGCONT) == signal.SIG_DFL:  # comes after every stop
            signal.signal(signal.SIGCONT, lambda number, _: CONTINUED.append(number))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call: measures its peak memory, and keeps the garbage collector off."""
        self.started, was_on = now(), gc.isenabled()
        gc.collect()
        gc.disable()
        measures = True
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            try:
                CLEAR.write_text("5")  # starts a new high-water mark
            except OSError:
                measures = False
        try:
            yield
        finally:
            if was_on:
                gc.enable()
        self.peak_mb = math.nan
        if self.on_gpu:
            cuda = torch.cuda
            most = cuda.max_memory_reserved if self.captured else cuda.max_memory_allocated
            self.peak_mb = most(self.device) / MB
        elif measures:
            line = next(x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM"))
            self.peak_mb = int(line.split()[1]) * 1024 / MB

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Times a part of a call, and for `total`, prefill and decoding, reads the processors
        around it. Where the part raises, nothing is recorded."""
        before = read() if part == "total" else None
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        began = perf_counter()
        yield
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        self.seconds[part] = perf_counter() - began
        if before is not None:
            self.load = between(before, read(), self.busy, one_core=self.on_gpu)
            if self.card is not None:
                self.card_state = self.card.read()
                disturbed = self.load.disturbed or self.card_state.disturbed(self.busy)
                self.load = replace(self.load, disturbed=disturbed)


# ---- the load of other programs -----------------------------------------------------------------


def read() -> Reading:
    """The counts now. Takes a tenth of a millisecond."""
    cores, count = counted_cores()
    counted = bool(cores) and all(len(line) > STEAL_FIELD for line in cores)
    if not counted:
        say_unreadable()
    busy = (
        TICK * sum(int(line[at]) for line in cores for at in BUSY_FIELDS) if counted else math.nan
    )
    steal = TICK * sum(int(line[STEAL_FIELD]) for line in cores) if counted else math.nan
    stopped, seconds = held_back()
    return Reading(
        perf_counter(), process_time(), busy, steal + seconds, count, stopped + len(CONTINUED)
    )


def counted_cores() -> tuple[list[list[str]], int]:
    """Lines of /proc/stat for the cores that this process may run on, and how many cores these are.

    A container (lxcfs) may number its own cores from 0, where the affinity has the host's numbers.
    Then it is the line of all that are listed.
    """
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = {words[0]: words for words in map(str.split, text_of(STAT).splitlines()) if words}
    if allowed <= lines.keys():
        return [lines[name] for name in allowed], len(allowed)
    listed = sum(re.fullmatch(r"cpu\d+", name) is not None for name in lines)
    return [lines["cpu"]] if listed and "cpu" in lines else [], listed or len(allowed)


@cache
def say_unreadable() -> None:
    """Says it once."""
    log.warning(
        "the load of other programs cannot be read here (%s lists no cores of this process): "
        "whether they disturb timings stays unknown",
        STAT,
    )


def between(
    before: Reading, after: Reading, limit: float = 1.0, one_core: bool = False, works: bool = True
) -> Load:
    """The load from one reading to a later one. limit: the share of the cores that others may take,
    1: any; one_core: this process needs no more than one of them, and may wait for a GPU; works:
    whether else one of its threads always runs. A tick that others may have had is not held against
    them, nor is what cannot be known."""
    seconds = after.at - before.at
    room = seconds * after.cores  # processor seconds that there were
    process = after.process - before.process
    others = max(after.busy - before.busy - process, 0.0) if after.busy == after.busy else math.nan
    steal = after.steal - before.steal
    most = 1 - (1 - limit) / (after.cores if one_core else 1)
    crowded = (others + steal) / room - TICK / seconds > most
    idle = seconds - process - sum(part for part in (others, steal) if part == part)
    stopped = after.stopped > before.stopped
    stopped |= works and not one_core and idle - TICK > seconds / 2  # nobody had most of the time
    disturbed = limit < 1 and (crowded or stopped)
    return Load(process / seconds, others / room, steal / room, disturbed)


def taken(share: float) -> str:
    """`cores 48 % taken by others`; NaN: that this is not known."""
    known = f"cores {100 * share:.0f} % taken by others"
    return known if share == share else "what others take of the cores is not known"


def wait_for_quiet(patience: float, limit: float, one_core: bool) -> bool:
    """Waits until nothing has disturbed for `QUIET_SECONDS`; whether that came within `patience`
    seconds. limit, one_core: as in `between`."""
    until, before = time.monotonic() + patience, read()
    while time.monotonic() + QUIET_SECONDS <= until:
        time.sleep(QUIET_SECONDS)
        after = read()
        if not between(before, after, limit, one_core, works=False).disturbed:
            return True
        before = after
    return False


# ---- a container's quota ------------------------------------------------------------------------


def control_groups() -> Iterator[Path]:
    """Folders of the control groups (cgroups) of this process, and of all groups above them. In a
    container the path may be the host's; then only the root exists."""
    for line in text_of(MEMBER).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CONTROL_GROUPS / "cpu" if controllers else CONTROL_GROUPS
        folder = root / path.strip("/")
        yield from (folder, *folder.parents[: len(folder.parts) - len(root.parts)])


def quota() -> float:
    """Cores' worth of time that the quota allows; infinite where there is none."""
    least = math.inf
    for folder in control_groups():
        for names in QUOTAS:
            numbers = " ".join(text_of(folder / name) for name in names).split()
            if len(numbers) == 2 and numbers[0].isdecimal() and int(numbers[1]):  # not "max", -1
                least = min(least, int(numbers[0]) / int(numbers[1]))
    return least


def held_back() -> tuple[int, float]:
    """So far: periods in which a quota stopped this process's group, and for how many seconds."""
    periods, seconds = 0, 0.0
    for folder in control_groups():
        counted = text_of(folder / "cpu.stat").split()
        counts = dict(zip(counted[::2], map(int, counted[1::2]), strict=True))
        periods += counts.get("nr_throttled", 0)
        seconds += sum(counts.get(name, 0) * unit for name, unit in HELD_BACK.items())
    return periods, seconds


def text_of(path: Path) -> str:
    """The text of a file; "" where there is none, or none that may be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
