"""The clock and the peak memory of a decoder's call: seconds of its parts, the processors' load
meanwhile.

Seconds: a CUDA call returns before its work is done, so the device is synchronised before and after
each part; without that the time is that of the launch (a fault of the released timing code). The
garbage collector is off during a call, because its pauses hit whoever happens to run.

Memory: that of the device on CUDA, else the resident memory of this process, whose high-water mark
Linux resets on request (proc(5), /proc/self/clear_refs). It is not known (NaN) where the mark
cannot be reset, and for a captured step (a CUDA graph): what that needs was allocated once, when it
was recorded, together with the states that all other decoders keep.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import torch

from bench.measure.busy import Load, between, read

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MB = 1e6


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Meter:
    """Measures calls on one device. Of the last call: started: when it began; seconds: of its
    parts, by name; load: of the processors during its decoding; peak_mb: its peak memory in
    megabytes (1e6 bytes).

    busy: `latency.busy`; recorded: whether steps are recorded.
    """

    def __init__(self, device: torch.device, busy: float = 1.0, recorded: bool = False) -> None:
        self.device, self.busy, self.recorded = device, busy, recorded
        self.on_gpu = device.type == "cuda"
        self.started, self.peak_mb = "", math.nan
        self.seconds: dict[str, float] = {}
        self.load = Load(math.nan, math.nan, math.nan, False)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call: measures its peak memory, and keeps the garbage collector off."""
        self.started, was_on = now(), gc.isenabled()
        gc.collect()
        gc.disable()
        measures = not self.recorded and self._reset_peak()
        try:
            yield
        finally:
            if was_on:
                gc.enable()
        self.peak_mb = self._read_peak() if measures else math.nan

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Times a part of a call. Where it raises, nothing is recorded."""
        self._synchronise()
        began = perf_counter()
        yield
        self._synchronise()
        self.seconds[part] = perf_counter() - began

    @contextmanager
    def time_decoding(self) -> Iterator[None]:
        """Times the part `total`, prefill and decoding, and reads the processors around it."""
        before = read()
        with self.time("total"):
            yield
        self.load = between(before, read(), self.busy, one_core=self.on_gpu)

    def _synchronise(self) -> None:
        """Waits for the device's queued work; a CPU has none."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def _reset_peak(self) -> bool:
        """Starts a new high-water mark; False where that cannot be done."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
            return True
        try:
            _CLEAR.write_text("5")
        except OSError:
            return False
        return True

    def _read_peak(self) -> float:
        if self.on_gpu:
            return float(torch.cuda.max_memory_allocated(self.device)) / MB
        line = next(x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / MB
