"""What an NVIDIA card does while an image is timed: its clock and what holds it down, how busy it
is, and how much of that others take. Read by NVML (the package nvidia-ml-py), which takes less than
a millisecond; without it nothing of this is known.

A process in a container may not know its own number outside, by which NVML names it. Then the
busiest process on the card is taken for this one.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)
# Bits of NVML's reasons for a lower clock. With those of SLOWED a time is no time of this card.
LIMITS = {
    0x2: "set clock",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "synchronised cards",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clock",
}
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
INSTALL = "pip install nvidia-ml-py"


@dataclass(frozen=True)
class CardState:
    """clock_mhz: of the multiprocessors; limits: what holds it down, in words; use: of the last
    part of a second, and others: of which by other processes, 0 to 1. NaN where it is not known.
    slowed: whether heat or a fault holds the clock down."""

    clock_mhz: float = math.nan
    limits: str = ""
    use: float = math.nan
    others: float = math.nan
    slowed: bool = False

    def disturbed(self, limit: float) -> bool:
        """Whether others take more than `limit` of the card (1: any), or it is slowed."""
        return limit < 1 and (self.slowed or self.others > limit)


class Card:
    """A card as NVML sees it."""

    def __init__(self, device: torch.device) -> None:
        """Raises ImportError without the package, OSError without a driver that answers."""
        import pynvml

        self.nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid_of(device))
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        self.last_us = 0  # the newest sample of processes that was read

    def read(self) -> CardState:
        """Its state now. What a card does not tell is not known."""
        nvml, handle = self.nvml, self.handle
        clock = self.ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        bits = self.ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        use = self.ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        return CardState(
            clock_mhz=math.nan if clock is None else float(clock),
            limits=", ".join(words for bit, words in LIMITS.items() if bits & bit),
            use=math.nan if use is None else use.gpu / 100,
            others=self.others(),
            slowed=bool(bits & SLOWED),
        )

    def others(self) -> float:
        """The share that other processes took since the last reading; NaN where it is not known."""
        samples = self.ask(self.nvml.nvmlDeviceGetProcessUtilization, self.handle, self.last_us)
        if samples is None:
            return math.nan
        shares: dict[int, list[float]] = {}
        for sample in samples:
            self.last_us = max(self.last_us, int(sample.timeStamp))
            shares.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        means = {pid: sum(every) / len(every) for pid, every in shares.items()}
        if means:
            means.pop(os.getpid() if os.getpid() in means else max(means, key=lambda p: means[p]))
        return min(1.0, sum(means.values()))

    def ask(self, question: Any, *words: Any) -> Any:
        """NVML's answer; None where the card, a part of one or the driver has none."""
        try:
            return question(*words)
        except self.nvml.NVMLError:
            return None


def uuid_of(device: torch.device) -> str:
    """By which NVIDIA's tools know a card: CUDA_VISIBLE_DEVICES renumbers torch's devices."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def open_card(device: torch.device) -> Card | None:
    """The card of a CUDA device; None for another one, and with a warning where NVML is missing."""
    if device.type != "cuda":
        return None
    try:
        return Card(device)
    except ImportError:
        why = INSTALL
    except (RuntimeError, AssertionError, OSError) as error:
        why = str(error)
    log.warning("the card's clock and the work of others on it are not recorded: %s", why)
    return None
