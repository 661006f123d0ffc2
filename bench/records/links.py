"""No link below a run folder: what is written there must not land elsewhere.

Why: a run writes, replaces and removes files by name. A link at rows/, images/ or report/ would let
it do so in the folder of another run. The run folder itself may be a link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bench.errors import FolderError


def refuse_links(folder: Path) -> None:
    """Raises FolderError with the first link below a folder; none where there is no such folder."""
    found = next(_links(folder), None) if folder.is_dir() else None
    if found is not None:
        raise FolderError(
            f"{found} is a link (to {found.readlink()}), and a run writes into its own folder "
            "alone; remove the link, or make the whole run_dir a link"
        )


def _links(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_symlink():
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                yield from _links(Path(entry.path))
