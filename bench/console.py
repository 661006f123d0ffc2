"""The one place that writes to the terminal: lines, errors, progress bars.

Why: library code stays silent, so that a study can run in a notebook or a job.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from bench.errors import escape_hidden

if TYPE_CHECKING:
    from tqdm import tqdm

READER_GONE = 128 + signal.SIGPIPE  # what a shell reports of a program that the signal ended


def say(text: str = "") -> None:
    """Prints lines on the standard output, flushed. Ends the program quietly, status 141,
    where nobody reads any more (`| head`)."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Prints a line on the standard error; where that is full there is nobody to tell."""
    with suppress(OSError):
        _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    """Writes a line, and escapes what the stream's encoding has no character for."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        line = escape_hidden(text) + "\n"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        # What is left in the buffer goes nowhere; else Python would complain as it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        raise SystemExit(READER_GONE) from None


@contextmanager
def progress(total: int, label: str, done: int = 0, unit: str = "img") -> Iterator[tqdm[Any]]:
    """Shows a bar over `total` units with the time left, on the standard error.

    Without a terminal it writes a line every ten seconds instead of redrawing ten times a second.
    """
    from tqdm import tqdm

    bar: tqdm[Any]
    with tqdm(
        total=total,
        initial=done,
        disable=not total,
        desc=label,
        unit=unit,
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
        dynamic_ncols=True,
    ) as bar:
        yield bar
