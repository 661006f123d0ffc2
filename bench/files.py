"""Writes files whole or not at all, and tries whether a place can be written to."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

TEMPORARY = ".tmp-"  # how names of temporary files begin


def write_text(path: Path, text: str) -> Path:
    """Writes a text file that is whole or absent; returns its path. A byte of a file's name that is
    no UTF-8 is written as an escape."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))
    return path


def write_bytes(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Writes this content by `write_atomically`."""
    write_atomically(path, lambda file: file.write(content), sync=sync)


def write_atomically(path: Path, fill: Callable[[IO[bytes]], object], *, sync: bool = True) -> None:
    """Calls `fill` on a temporary file in the same folder, syncs it and renames it to `path`.

    sync False: a power failure (not a kill) may leave an empty file. On any failure the temporary
    file is removed and `path` is as it was. Raises OSError.
    """
    temporary = ""
    try:
        with _named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=path.parent, prefix=TEMPORARY, suffix=path.suffix, delete=False
            ) as file:
                temporary = file.name
                fill(file)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            mask = os.umask(0)  # it can only be read by setting it
            os.umask(mask)
            with suppress(OSError):  # some file systems have no modes
                Path(temporary).chmod(0o666 & ~mask)  # a temporary file is private, a result is not
            Path(temporary).replace(path)
    except BaseException:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise


def append(path: Path, content: bytes) -> None:
    """Appends to a file and syncs it; a kill may leave a part of the content. Raises OSError."""
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Gives an OSError the name of the file: one of a write has none, as where the disk is full,
    or that of a temporary file, which nobody has named."""
    try:
        yield
    except OSError as error:
        temporary = Path(str(error.filename)).name.startswith(TEMPORARY)
        if error.errno is not None and (error.filename is None or temporary):
            error.filename = str(path)
        raise


def prepare_folder(path: Path) -> None:
    """Makes a folder and tries to write into it, so that what is refused is refused before hours
    of work. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    with _named(path), tempfile.NamedTemporaryFile(dir=path, prefix=TEMPORARY) as file:
        file.write(b"0")


def prepare_file(path: Path) -> None:
    """Tries the same for a file to be written, which it does not touch. Raises OSError."""
    prepare_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with _named(path):
        path.with_name(f"{TEMPORARY}{path.name}").exists()  # too long a name is refused now
