"""A container's quota of processor time (`docker run --cpus N`), from Linux's control groups.

A quota is no affinity: the process sees all cores, and the kernel stops its threads for the rest of
each period (100 ms) once they have used their time. Version 2 of control groups says `quota period`
in cpu.max, version 1 in two files; both count in cpu.stat what they held back. A limit of a group
holds for all groups below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

MEMBER, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
HELD_BACK = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # counts of cpu.stat -> seconds of one


def groups() -> Iterator[Path]:
    """Folders of the groups that this process is in, and of those above them. In a container the
    path may be the host's: then its root is what there is."""
    for line in _read(MEMBER).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = ROOT / "cpu" if controllers else ROOT
        place = root / path.strip("/")
        yield from (place, *place.parents[: len(place.parts) - len(root.parts)])


def cores() -> float:
    """Cores' worth of time that the quota allows; infinite where there is none."""
    least = math.inf
    for folder in groups():
        for names in QUOTAS:
            texts = " ".join(_read(folder / name) for name in names).split()
            if len(texts) == 2 and texts[0].isdecimal() and int(texts[1]):  # not "max", not -1
                least = min(least, int(texts[0]) / int(texts[1]))
    return least


def held_back() -> tuple[int, float]:
    """So far: periods in which a quota stopped this process's group, and for how many seconds."""
    periods, seconds = 0, 0.0
    for folder in groups():
        words = _read(folder / "cpu.stat").split()
        counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        periods += counts.get("nr_throttled", 0)
        seconds += sum(counts.get(name, 0) * unit for name, unit in HELD_BACK.items())
    return periods, seconds


def _read(path: Path) -> str:
    """ "" where there is no such file, or none that may be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
