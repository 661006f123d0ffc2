"""Warm-up of a decoder: whole images until the time of one is stable.

Why whole images: caches, thread pools, allocator and compiled graphs settle only over a complete
decoding, and the released timing code had all of that inside its first image (METHODS 4.7).
"""

from __future__ import annotations

from collections.abc import Callable


def warm_up(image: Callable[[], float], most: int, tolerance: float) -> list[float]:
    """Runs `image` (which returns its seconds) until the last two differ by less than `tolerance`
    of the longer one, at most `most` times. Returns the seconds of every image."""
    seconds: list[float] = []
    while len(seconds) < most:
        seconds.append(image())
        if len(seconds) > 1:
            last, before = seconds[-1], seconds[-2]
            if abs(last - before) < tolerance * max(last, before):
                break
    return seconds
