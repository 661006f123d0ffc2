"""Cached features on disk: a file is whole or absent, whoever is killed while writing it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, fill: Callable[[Path], object]) -> None:
    """Calls `fill` on a name beside `path` and renames what it wrote; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        fill(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
