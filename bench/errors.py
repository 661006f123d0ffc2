"""Errors that a user can act on: shown as a message without a traceback, exit status 2.

Why one file without imports: the command line must be able to name them before torch or Hydra is
loaded. Each message says what was expected, what was found and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """Base of the harness's own errors."""


class ConfigError(BenchError):
    """A setting that cannot be: unknown name, wrong type, impossible value."""


class PromptError(BenchError):
    """A prompt set that cannot be used: missing file, empty, duplicate or unreadable prompts."""


class FolderError(BenchError):
    """A results folder that must not be written to: other schema, other configuration, in use."""


class DiskFullError(BenchError):
    """No space left. Everything recorded so far is intact; a rerun resumes."""


class TimeLimitError(BenchError):
    """An image that took longer than `time_limit` allows."""


class Interrupted(KeyboardInterrupt):
    """A run was interrupted: says how far it came and how to go on. No BenchError, as nothing that
    handles errors may take it for one."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names that resemble `name` most, best first (possibly none)."""
    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.4)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x' or 'y'?` of the nearest known names; "" where none is near."""
    close = nearest(name, known)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A message about an unknown name: the nearest ones first, then all of them."""
    names = sorted(known)
    hint = did_you_mean(name, names) or "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(names) or '(none)'}"


def printable(text: str) -> str:
    """The text with lone surrogates escaped (`\\udcff`): no file, page or terminal can hold one."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def described(error: BaseException) -> str:
    """`Type: message`, with file and line where a plug-in raised it. What explains itself (an error
    of the project's own types) needs no place."""
    from decoders.api import DecoderError
    from decoders.places import place

    try:
        message = str(error)
    except Exception as failed:  # a plug-in's error may not even be printable
        message = f"(its message cannot be shown: {type(failed).__name__})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = "" if isinstance(error, BenchError | DecoderError) else place(error)
    return printable(f"{text}, at {where}" if where else text)
