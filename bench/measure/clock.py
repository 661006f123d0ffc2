"""Wall-clock time of work on a device: the device is synchronised on both sides.

Why: a CUDA call returns before its work is done, so unsynchronised times are those of the launch
(METHODS 4.7 names this as a fault of the released timing code). The garbage collector is off inside
a timed region, because its pauses hit whoever happens to run. The clock is bound when this module
is imported, before any plug-in is, and the kernel's own must agree with it: a plug-in that replaces
`time.perf_counter` changes no figure.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import CLOCK_MONOTONIC, clock_gettime, perf_counter

import torch

from bench.data.errors import BenchError

APART = 0.01  # of a region, that two clocks may differ by


class ClockError(BenchError):
    """Two clocks that do not agree: the time of a region means nothing."""


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _kernel() -> float:
    return clock_gettime(CLOCK_MONOTONIC)


@dataclass
class Clock:
    """Times regions on one device. `seconds[name]` is the duration of the last region `name`."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    def synchronise(self) -> None:
        """Waits for the device's queued work; a CPU has none."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()  # torch.cuda, torch.mps, torch.xpu

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Times the block in seconds. Where it raises, nothing is recorded. Raises ClockError."""
        self.synchronise()
        before, began, after = _kernel(), perf_counter(), _kernel()
        yield
        self.synchronise()
        least, ended, most = _kernel() - after, perf_counter(), _kernel() - before
        found = ended - began
        if not least * (1 - APART) <= found <= most * (1 + APART):
            raise ClockError(
                f"perf_counter counts {found:.4g} s where the kernel's clock counts {most:.4g} "
                "s: something has replaced a clock, so this time means nothing"
            )
        self.seconds[name] = found


@contextmanager
def no_collection() -> Iterator[None]:
    """Collects garbage once, then keeps the collector off for the block."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
