"""Where a report goes: into its run's folder, or to `out=DIR`.

Why: the run of a colleague may be read-only, and a report of it must not change it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bench.config.words import apart, split
from bench.errors import ConfigError, FolderError
from bench.records.links import refuse_links

REPORT = {"index.html", "table.txt"}  # what every report holds


def split_out(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The words without `out=DIR`, and DIR. Raises ConfigError where it names nothing."""
    named, rest = apart(words, ("out",))
    if not named:
        return rest, None
    value = split(named[-1]).value
    if not value:
        raise ConfigError("out= names no folder; write out=DIR, the folder for the report")
    return rest, Path(value).expanduser()


def check_place(run_dir: Path, out: Path | None) -> None:
    """Raises FolderError where a report cannot or must not be written."""
    if out is None:
        refuse_links(run_dir)
        if run_dir.is_dir() and not os.access(run_dir, os.W_OK):
            raise FolderError(f"{run_dir} is read-only; report it elsewhere with out=DIR")
        return
    if out.resolve().is_relative_to(run_dir.resolve()):
        raise FolderError(
            f"out={out} lies in the run's folder, and with out= nothing is written there; choose "
            "another folder, or leave out= away for the report in the run's folder"
        )
    if out.exists() and not out.is_dir():
        raise FolderError(f"out={out} is a file; choose a folder")
    inside = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if inside and not inside >= REPORT:
        raise FolderError(
            f"out={out} is not empty and holds no report, so nothing is written there; choose "
            "another folder"
        )
    refuse_links(out)
