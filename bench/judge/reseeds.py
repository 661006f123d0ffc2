"""How summary.csv names a reseed: the baseline under another seed has a row of its own."""

from __future__ import annotations

import re

_NAME = re.compile(r"(.*) \(reseed(?: (\d+))?\)")


def reseed_name(baseline: str, number: int) -> str:
    """The name of a baseline under its n-th other seed, n from 1."""
    return f"{baseline} (reseed{'' if number == 1 else f' {number}'})"


def reseed_of(name: str) -> tuple[str, int] | None:
    """(baseline, n) of such a name; None for a decoder's."""
    found = _NAME.fullmatch(name)
    return (found[1], int(found[2] or 1)) if found else None
