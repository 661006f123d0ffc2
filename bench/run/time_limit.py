"""A time limit on one call: a drafter that loops for ever must not hold up the other decoders.

How: a timer's signal raises an exception inside the call, in Python's main thread. It cannot end a
hang inside one C call (a kernel, a read from a dead disk): Python handles a signal between two of
its own instructions. Nor can it see work in other threads.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.errors import ConfigError, TimeLimitError
from decoders.places import place

T = TypeVar("T")
AGAIN = 0.5  # seconds until the signal is sent again, to a call that has swallowed the exception


class _Late(BaseException):
    """Raised inside the call. No Exception, as a plug-in may handle all of those and go on."""


@dataclass
class _Timer:
    """Rings after so many seconds, and again until it is stopped. A timer that ran before goes on
    afterwards."""

    began: float = 0.0
    before: tuple[float, float] = (0.0, 0.0)  # seconds left of it, its interval
    handler: Any = None
    armed: bool = False  # a signal may arrive when the call is over

    def start(self, seconds: float) -> None:
        self.began, self.armed = time.monotonic(), True
        self.handler = signal.signal(signal.SIGALRM, self._ring)
        self.before = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)

    def stop(self) -> None:
        """Twice does no harm."""
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.handler)
        left, interval = self.before
        if left:
            left -= time.monotonic() - self.began
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), interval)

    def _ring(self, *_: object) -> None:
        if self.armed:
            raise _Late


def require_main_thread(limit: float | None) -> None:
    """Raises ConfigError where a time limit is set and cannot be kept."""
    if limit is not None and threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"time_limit={limit:g} works in Python's main thread alone, this is another one; run "
            "the study in the main thread, or leave time_limit=null"
        )


def within(limit: float | None, images: int, work: Callable[[], T]) -> T:
    """`work()` on so many images, or TimeLimitError when it has taken `limit` seconds an image;
    None: no limit."""
    if limit is None:
        return work()
    seconds = limit * images
    timer = _Timer()
    try:
        try:
            timer.start(seconds)
            return work()
        finally:
            timer.stop()
    except _Late as late:
        timer.stop()  # the signal may have come before the first stop
        where, many = place(late), f", {images} images" if images > 1 else ""
        raise TimeLimitError(
            f"stopped after {seconds:g} s (time_limit={limit:g}{many})"
            + (f" at {where}" if where else "")
        ) from late
