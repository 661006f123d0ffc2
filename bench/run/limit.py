"""A time limit on a call: a drafter that loops for ever must not hold up the other decoders.

A timer's signal raises an exception inside the call, in Python's main thread. It cannot end a hang
inside one C call (a kernel, a read from a dead disk): Python handles a signal between two of its
own instructions. Nor can it see work in other threads.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from bench.data.errors import ConfigError, TimeLimitError
from decoders.places import place

T = TypeVar("T")
BRIEF = 0.01  # seconds that are not waited for


class _Late(BaseException):
    """Raised inside the call. No Exception, as libraries handle those and go on."""


def require_main_thread(limit: float | None) -> None:
    """Raises ConfigError where a time limit is set and cannot be kept."""
    if limit is not None and threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"time_limit={limit:g} works in Python's main thread alone, this is another one; run "
            "the study in the main thread, or leave time_limit=null"
        )


def within(
    limit: float | None,
    images: int,
    work: Callable[[], T],
    excused: Callable[[], float] = lambda: 0.0,
) -> T:
    """`work()` on so many images, or TimeLimitError when it has taken `limit` seconds an image;
    None: no limit. The seconds of `excused`, a count (of compiling), do not count."""
    if limit is None:
        return work()
    seconds, began, before = limit * images, monotonic(), excused()

    def ring(*_: object) -> None:
        left = seconds + excused() - before - (monotonic() - began)
        if left < BRIEF:
            raise _Late
        signal.setitimer(signal.ITIMER_REAL, left)

    handler = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return work()
    except _Late as late:
        where, many = place(late), f", {images} images" if images > 1 else ""
        raise TimeLimitError(
            f"stopped after {seconds:g} s (time_limit={limit:g}{many})"
            + (f" at {where}" if where else "")
        ) from late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
