"""The folder of compiled code, and the line of a plug-in's file at which an error was raised.

Why: `TypeError: unsupported operand` from deep inside a loop tells the author of a drafter nothing.
The last line of a file that is neither Python's, nor installed, nor the project's does.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
OURS = tuple(PROJECT / name for name in ("bench", "decoders", "metrics"))


def folder() -> Path:
    """Where libraries and compiled code are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "lantern-bench"


def is_cache(place: Path) -> bool:
    """Whether a path lies in that folder, or the folder lies in it."""
    try:
        return place.is_relative_to(folder()) or folder().is_relative_to(place)
    except RuntimeError:  # there is no home folder
        return False


def no_programs(place: Path) -> str:
    """What to do where the system runs nothing that lies on a folder's disk; "" where it does."""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    if not os.statvfs(there).f_flag & getattr(os, "ST_NOEXEC", 0):
        return ""
    return f"{place} lies on a disk that is mounted noexec: set XDG_CACHE_HOME to another folder"


def compiled_folder() -> Path:
    """Where torch keeps what it compiles. To be called before anything is compiled, as torch then
    settles on a folder. It also notes there which kernels were the fastest, on which codes in half
    precision depend."""
    default = str(folder() / "compiled")
    return Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", default))


def installed_folders() -> list[Path]:
    """The folders of Python and of installed packages."""
    paths = sysconfig.get_paths()
    return [Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]


def place(error: BaseException) -> str:
    """`FILE:LINE` of the plug-in line that raised an error last; "" where no plug-in's file is
    among its frames. A syntax error has the place that Python could not read."""
    others = (*OURS, *installed_folders())
    frames = traceback.walk_tb(error.__traceback__)  # outermost first
    lines = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append((error.filename, error.lineno or 0))
    for file, line in reversed(lines):  # Python's own have no file: <frozen importlib._bootstrap>
        path = Path(file)
        if path.is_absolute() and not any(path.is_relative_to(folder) for folder in others):
            return f"{file}:{line}"
    return ""
