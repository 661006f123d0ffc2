"""Wall-clock time of work on a device: the device is synchronised on both sides.

Why: a CUDA call returns before its work is done, so unsynchronised times are those of the launch
(a fault of the released timing code). The garbage collector is off inside
a timed region, because its pauses hit whoever happens to run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter

import torch


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Clock:
    """Times regions on one device. `seconds[name]` is the duration of the last region `name`."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    def synchronise(self) -> None:
        """Waits for the device's queued work; a CPU has none."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Times the block in seconds. Where it raises, nothing is recorded."""
        self.synchronise()
        began = perf_counter()
        yield
        self.synchronise()
        self.seconds[name] = perf_counter() - began


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
