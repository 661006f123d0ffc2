"""What else runs on this machine: readings of the processors, the load between two of them, and
what a run does about it.

Why: a neighbour adds time to whatever it meets, unevenly, and the figures of such an hour look as
clean as any. Linux counts what every processor does (proc(5), /proc/stat); what this process has
not used of the busy time, others have. Steal is what a hypervisor gave to other guests, and what a
container's quota kept from this one (`bench.measure.quota`). The counts come in ticks, so a span of
a few milliseconds says little: `Load.blur`.

An image during which others take more than `latency.busy` of the cores, or a quota stopped this
process at all, is *disturbed*. The run waits for quiet and times it again. What stays disturbed
counts for no figure of time (`bench.judge.paired`). On a GPU the host's part is one thread that
launches the work: it suffers where no core is left.
"""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from bench.config.schema import LatencyProtocol
from bench.measure import quota

log = logging.getLogger(__name__)
LOOK = 1.0  # seconds: a quiet machine is one that is quiet for so long
STAT = Path("/proc/stat")
BUSY, STEAL = (1, 2, 3, 6, 7), 8  # words of a line: user, nice, system, irq, softirq; steal


@dataclass(frozen=True)
class Reading:
    """The counts at one moment, in seconds: the wall clock, processor time of this process with all
    its threads, busy and stolen time of the `cores` it may run on, NaN where it is not known.
    stopped: periods in which a quota stopped it."""

    at: float
    own: float
    busy: float
    steal: float
    cores: int
    tick: float
    stopped: int = 0


@dataclass(frozen=True)
class Load:
    """Between two readings. own: processor seconds of this process per second; others, steal:
    shares of its cores, 0 to 1, NaN where they are not known; blur: the share that a tick is;
    stopped: whether a quota stopped this process."""

    own: float
    others: float
    steal: float
    blur: float
    cores: int
    stopped: bool = False

    @property
    def taken(self) -> float:
        """What others and the hypervisor have taken, a share of the cores."""
        return self.others + self.steal

    def disturbs(self, limit: float, needed: int) -> bool:
        """Whether others leave less than 1 - limit of each of the `needed` cores, or a quota
        stopped this process. False where it cannot be told, and for a limit of 1."""
        if limit == 1:
            return False
        if self.stopped:
            return True
        return self.taken - self.blur > 1 - (1 - limit) * min(needed, self.cores) / self.cores


def read() -> Reading:
    """The counts now. Takes a tenth of a millisecond."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    try:
        lines = [line.split() for line in STAT.read_text().splitlines()]
    except FileNotFoundError:  # no Linux
        lines = []
    cores = [line for line in lines if line[0] in {f"cpu{number}" for number in allowed}]
    counted = bool(cores) and all(len(line) > STEAL for line in cores)
    busy = tick * sum(int(line[at]) for line in cores for at in BUSY) if counted else math.nan
    steal = tick * sum(int(line[STEAL]) for line in cores) if counted else math.nan
    stopped, seconds = quota.held_back()
    stolen, count = steal + seconds, len(cores) or 1
    return Reading(perf_counter(), process_time(), busy, stolen, count, tick, stopped)


def between(before: Reading, after: Reading) -> Load:
    """The load from one reading to a later one."""
    seconds = after.at - before.at
    room = seconds * after.cores  # processor seconds that there were
    own = after.own - before.own
    others = max(after.busy - before.busy - own, 0.0) if after.busy == after.busy else math.nan
    return Load(
        own=own / seconds,
        others=others / room,
        steal=(after.steal - before.steal) / room,
        blur=after.tick / seconds,
        cores=after.cores,
        stopped=after.stopped > before.stopped,
    )


def words(share: float) -> str:
    """`cores 48 % taken by others`."""
    return f"cores {100 * share:.0f} % taken by others"


class Neighbours:
    """What others do to the images of a run on this device."""

    def __init__(self, latency: LatencyProtocol, device: str) -> None:
        self.limit, self.patience = latency.busy, latency.wait_for_quiet
        self.on_cpu = device.startswith("cpu")
        self.given_up = False  # until an image is not disturbed

    def is_disturbed(self, load: Load) -> bool:
        return load.disturbs(self.limit, load.cores if self.on_cpu else 1)

    def time_again(self, row: dict[str, Any]) -> bool:
        """Whether an image that was just timed is to be timed again: it was disturbed, and now the
        machine is quiet, which is waited for. After a wait in vain no image waits, until one is not
        disturbed."""
        if not row["disturbed"]:
            self.given_up = False
            return False
        if self.given_up:
            return False
        log.warning(
            "%s, image %d: the machine is busy (%s; more than %.0f %% count as disturbed); "
            "waiting for quiet, %g s at most (latency.wait_for_quiet)",
            row["decoder"], row["prompt_index"],
            words(row["cpu_others"] + row["cpu_steal"]), 100 * self.limit, self.patience,
        )  # fmt: skip
        self.given_up = not self.quiet()
        return not self.given_up

    def quiet(self) -> bool:
        """Waits until nothing has disturbed for `LOOK` seconds; whether that came in time."""
        until, before = time.monotonic() + self.patience, read()
        while time.monotonic() + LOOK <= until:
            time.sleep(LOOK)
            after = read()
            if not self.is_disturbed(between(before, after)):
                return True
            before = after
        return False
