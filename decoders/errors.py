"""The errors of `decoders`, the nearest known names for an unknown one, and the line of a plug-in's
file at which an error was raised: `TypeError: unsupported operand` from deep inside a loop tells
the author of a drafter nothing. Imports nothing heavy: the command line names these errors before
torch is loaded."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROJECT_ROOT = Path(__file__).resolve().parents[1]
PROJECT_FOLDERS = tuple(PROJECT_ROOT / name for name in ("bench", "decoders", "metrics", "recipes"))


class DecoderError(ValueError):
    """An input that cannot be used: says what was expected, what was found and what to do."""


class NumericalError(DecoderError):
    """NaN or infinity where logits or probabilities were expected."""


class RefillError(DecoderError):
    """A part whose state cannot begin another image in the row of a finished one."""


def did_you_mean(name: str, options: Iterable[Any]) -> str:
    """`; did you mean 'x' or 'y'?` of the nearest known names; "" where none is near. Of dotted
    names the last parts must be near: settings of one group begin alike."""
    near = [k for k in map(str, options) if difflib.get_close_matches(_last(name), [_last(k)])]
    close = difflib.get_close_matches(str(name), near, n=3, cutoff=0)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _last(name: str) -> str:
    part = str(name).rpartition(".")[2]
    return part if part.isidentifier() else str(name)


def unknown(what: str, name: str, options: Iterable[str]) -> str:
    """A message about an unknown name: the nearest ones first, then all of them."""
    names = sorted(options)
    hint = did_you_mean(name, names) or "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(names) or '(none)'}"


def installed_folders() -> list[Path]:
    """The folders of Python and of installed packages."""
    paths = sysconfig.get_paths()
    return [Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]


def plugin_line(error: BaseException) -> str:
    """`FILE:LINE` of the plug-in line that raised an error last; "" where no plug-in's file is
    among its frames. A syntax error has the line that Python could not read."""
    others = (*PROJECT_FOLDERS, *installed_folders())
    frames = traceback.walk_tb(error.__traceback__)  # outermost first
    lines = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append((error.filename, error.lineno or 0))
    for file, line in reversed(lines):  # Python's own have no file: <frozen importlib._bootstrap>
        path = Path(file)
        if path.is_absolute() and not any(path.is_relative_to(folder) for folder in others):
            return f"{file}:{line}"
    return ""
