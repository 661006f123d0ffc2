"""Errors that a user can act on: shown as a message without a traceback, exit status 2.

Each message says what was expected, what was found and what to do. What the system refuses (a full
disk, a folder where a file is expected) can be met at any line that opens or writes something; it
is put into words here, once. Nothing heavy is imported: the command line names these errors before
torch or Hydra is loaded.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from decoders.cache_folder import is_cache
from decoders.errors import DecoderError, plugin_line
from metrics import MetricError

T = TypeVar("T")
# Controls but tab and newline, line separators, what sets the direction of writing or cannot be
# seen, and lone surrogates, which no file can hold.
HIDDEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


class BenchError(Exception):
    """Base of the harness's own errors."""


class ConfigError(BenchError):
    """A setting that cannot be: unknown name, wrong type, impossible value."""


class PromptError(BenchError):
    """A prompt set that cannot be used: missing file, empty, duplicate or unreadable prompts."""


class FolderError(BenchError):
    """A results folder that must not be written to: other schema, other configuration, in use."""


class InUseError(FolderError):
    """A results folder that another process writes to."""


class DeviceLostError(BenchError):
    """A GPU that answers nothing more in this process, as after an illegal access to its memory."""


EXPLAINED = (BenchError, DecoderError, MetricError)  # errors that say themselves what to do
INTERRUPTED = 130  # exit status of a run that was told to stop, as a shell has it


class Interrupted(KeyboardInterrupt):
    """A run was interrupted: says how far it came and how to go on. No BenchError, as nothing that
    handles errors may take it for one."""


@dataclass(frozen=True)
class Failure:
    """What a decoder raised, as `Type: message`."""

    error: str


def attempt(work: Callable[[], T], passing: tuple[type[Exception], ...] = ()) -> T | Failure:
    """Returns `work()`, or what it raised; errors of the types `passing` are not caught.

    The isolation boundary around decoders: a plug-in may raise any exception, and a failure is a
    record, not a missing row, while the other decoders go on. They cannot where the GPU is lost:
    then it raises DeviceLostError. Three other handlers are as broad: `LoaderConfig.load` and
    `decoders.compose`, around what a user names, and `decoders.models.prompts`, around a library.
    """
    try:
        return work()
    except passing:
        raise
    except Exception as error:
        if loses_device(error):
            raise DeviceLostError(describe_error(error)) from error
        return Failure(describe_error(error))


def loses_device(error: Exception) -> bool:
    """Whether all later calls of the GPU fail as well. CUDA has two such errors, an illegal access
    and a failed assertion, and torch does not tell them from the others; but memory that is full is
    free again when its tensors are gone."""
    torch = sys.modules.get("torch")
    from_device = torch is not None and isinstance(error, torch.AcceleratorError)
    return from_device and "out of memory" not in str(error)


def escape_hidden(text: str) -> str:
    """Escapes characters that move the cursor or cannot be seen (`\\x1b`, `\\u202e`)."""
    return HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def plural(count: int, noun: str) -> str:
    """Writes `no images`, `1 image`, `1,200 images`."""
    return f"{f'{count:,}' if count else 'no'} {noun}{'s' * (count != 1)}"


def describe_error(error: BaseException) -> str:
    """Writes `Type: message`, with file and line where a plug-in raised it. An error of the
    project's own types explains itself and needs no place."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    where = "" if isinstance(error, EXPLAINED) else plugin_line(error)
    return escape_hidden(f"{text}, at {where}" if where else text)


FULL = (errno.ENOSPC, errno.EDQUOT)
ADVICE = {  # where the system's own words do not say what to do
    **dict.fromkeys(
        FULL,
        "free some space, or name a path on another disk. What was written so far is intact, and "
        "the same command resumes a run",
    ),
    errno.EEXIST: "it is there as a file where a folder is expected: name another path",
    errno.EFBIG: "files may not grow further here: raise `ulimit -f`, or the quota. What was "
    "written so far is intact, and the same command resumes a run",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENOMEM: "free some memory",
}
NAMELESS = (*ADVICE, errno.EIO)  # of the file system, also without a file's name


def describe_os_error(error: OSError) -> str | None:
    """Explains an error of the file system; None for any other (a socket, a pipe)."""
    if error.errno is None or (error.filename is None and error.errno not in NAMELESS):
        return None
    names = [str(n) for n in (error.filename, error.filename2) if n is not None]
    advice = ADVICE.get(error.errno, "correct the path and its permissions, or name another")
    if error.errno not in FULL and any(is_cache(Path(name)) for name in names):
        advice = "set XDG_CACHE_HOME to a folder that can be written"
    return f"{' -> '.join(names) or 'a file'}: {os.strerror(error.errno)}; {advice}"
