"""Peak memory of one image (or batch): device memory on CUDA, else resident memory of the
process.

The kernel keeps the high-water mark of a process's resident memory and resets it on request
(proc(5), /proc/self/clear_refs). Where it cannot be reset (no Linux), the mark is that of the whole
process so far, and `MemoryMeter.exact` says so. A recorded step (a CUDA graph) has no figure: what
it needs was allocated once, when it was recorded, beside the states that all other decoders keep.
"""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MB = 1e6


class MemoryMeter:
    """Call `reset()`, run, then read `peak_mb()`."""

    def __init__(self, device: torch.device, recorded: bool = False) -> None:
        self.device, self.recorded = device, recorded
        self.on_device = device.type == "cuda"
        self.exact = self.on_device or _can_reset()

    def reset(self) -> None:
        """Starts a new high-water mark."""
        if self.on_device:
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.exact:
            _CLEAR.write_text("5")

    def peak_mb(self) -> float:
        """Megabytes (1e6 bytes): allocated on the device, or resident in this process; NaN for
        recorded steps."""
        if self.recorded:
            return math.nan
        if self.on_device:
            return float(torch.cuda.max_memory_allocated(self.device)) / MB
        if self.exact:
            line = next(x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM"))
            return int(line.split()[1]) * 1024 / MB
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MB


def _can_reset() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return _STATUS.exists()
