"""Ctrl-C and SIGTERM while something long goes on, also where Python drops the exception: in a
finaliser, or in a callback of a library. Imports nothing heavy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS: list[int] = []  # that came while something was `interruptible`


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt on Ctrl-C and on SIGTERM, which batch systems and `kill` send; at
    the end for a signal whose exception was dropped. Signals reach the main thread alone;
    elsewhere, and where another handler stands, as Ray's in its own process, nothing changes."""

    def stop(number: int, _: object) -> None:
        SIGNALS.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        before = {n: how for n, how in usual.items() if signal.getsignal(n) == how}
        for number in before:
            signal.signal(number, stop)
    try:
        yield
        stop_if_interrupted()
    finally:
        SIGNALS.clear()
        for number, how in before.items():
            signal.signal(number, how)


def stop_if_interrupted() -> None:
    """Raises KeyboardInterrupt where a signal has come: a long loop asks from time to time."""
    if SIGNALS:
        raise KeyboardInterrupt
