"""The folder where libraries and compiled code are kept from run to run."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path


def folder() -> Path:
    """Where libraries and compiled code are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "lantern-bench"


def is_cache(path: Path) -> bool:
    """Whether a path lies in that folder, or the folder lies in it."""
    try:
        return path.is_relative_to(folder()) or folder().is_relative_to(path)
    except RuntimeError:  # there is no home folder
        return False


def no_programs(path: Path) -> str:
    """What to do where the system runs nothing that lies on a folder's disk, or torch's compiler
    does not read its path; "" where neither is so."""
    if odd := "".join(sorted({*re.findall(r"[^\w./+=@-]", str(path))})):
        return f"the path {path} holds {odd!r}: set XDG_CACHE_HOME to a folder without"
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not os.statvfs(there).f_flag & getattr(os, "ST_NOEXEC", 0):
        return ""
    return f"{path} lies on a disk that is mounted noexec: set XDG_CACHE_HOME to another folder"


def compiled_folder() -> Path:
    """Where torch keeps what it compiles. To be called before anything is compiled, as torch then
    settles on a folder. It also notes there which kernels were the fastest, on which codes in half
    precision depend.

    The folder's name says for which processor and by which compiler, as torch's own names do not:
    machines that share a home folder may lack each other's instructions.
    """
    if set_before := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(set_before)
    from decoders.cpu_info import compiler, features, version

    parts = [features(), *(program := compiler() or ())]
    with suppress(OSError):  # a program that cannot be run compiles nothing
        parts.append(version(program) if program else "")
    made_for = "|".join(parts)
    path = folder() / f"compiled-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path)
    return path
