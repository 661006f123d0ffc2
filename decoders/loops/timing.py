"""Where an image's time goes: a stopwatch that charges laps to phases, device-synchronised.

On a GPU a lap is a pair of events resolved after the run, so that timing adds no synchronisation.
"""

from __future__ import annotations

import time

import torch


class Stopwatch:
    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda" and torch.cuda.is_available()  # a fake one has no clock
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last = self._now()

    def _now(self) -> float | torch.cuda.Event:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def restart(self) -> None:
        """The time since the last lap is charged to nothing."""
        self._last = self._now()

    def lap(self, phase: str) -> None:
        """Charges the time since the last lap to `phase`."""
        now = self._now()
        if isinstance(now, float) and isinstance(self._last, float):
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        elif not isinstance(now, float) and not isinstance(self._last, float):
            self._events.append((phase, self._last, now))
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds per phase; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
            for phase, begin, end in self._events:
                spent = begin.elapsed_time(end) / 1e3
                self._seconds[phase] = self._seconds.get(phase, 0.0) + spent
            self._events.clear()
        return dict(self._seconds)
