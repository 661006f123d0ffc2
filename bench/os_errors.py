"""What the system refused, in words: which file, what was wanted of it, what to do.

Why one place: a file that is a folder, a full disk or a read-only share can be met at any line that
opens, writes or makes something. Libraries raise OSError as Python does; the command line says it
once, here. What is known to be written after hours of work is tried before them (`ready_*`).
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
ADVICE = {
    errno.ENOENT: ("is not there", "check the path, or make the folder that it lies in"),
    errno.EACCES: ("may not be opened", "ask for its permissions, or name another path"),
    errno.EPERM: ("may not be changed", "ask for its permissions, or name another path"),
    errno.EROFS: ("lies on a read-only disk", "name a path that can be written to"),
    errno.EISDIR: ("is a folder where a file is expected", "name the file"),
    errno.ENOTDIR: (
        "lies under a file, where a folder is expected",
        "name a path whose parents are folders",
    ),
    errno.EEXIST: ("is there already, as a file where a folder is expected", "name another path"),
    errno.ENAMETOOLONG: ("is too long a name for this disk", "name a shorter path"),
    errno.ELOOP: ("is a link that leads back to itself", "remove the link, or name its target"),
    errno.ENOSPC: (
        "could not be written: no space is left",
        "free some space, or name a path on another disk; what was written whole is safe",
    ),
    errno.EFBIG: ("would be larger than this disk allows", "name a path on another disk"),
    errno.ENOTEMPTY: ("is a folder that is not empty", "empty it, or name another path"),
    errno.EBUSY: ("is in use", "wait for whoever uses it"),
    errno.EINVAL: ("cannot be used in this way on this disk", "name another path"),
    errno.EIO: ("could not be read or written: the disk reports an error", "check the disk"),
    errno.ESTALE: ("was lost by its network share", "mount the share again"),
    errno.ETXTBSY: ("is a program that runs", "stop it first"),
    errno.ENXIO: ("is no file that can be opened", "name a plain file"),
    errno.EMFILE: ("could not be opened: too many files are open", "raise `ulimit -n`"),
    errno.ENOMEM: ("could not be read: no memory is left", "free some memory"),
}
ADVICE[errno.EDQUOT] = ADVICE[errno.ENOSPC]
NAMELESS = (*FULL, errno.EIO, errno.EMFILE, errno.EFBIG, errno.ENOMEM)


def explained(error: OSError) -> str | None:
    """One message for an error of the file system; None for any other (a socket, a pipe)."""
    if error.errno not in ADVICE or (error.filename is None and error.errno not in NAMELESS):
        return None
    names = [str(n) for n in (error.filename, error.filename2) if n is not None]
    what, advice = ADVICE[error.errno]
    reason = os.strerror(error.errno)
    return f"{' -> '.join(names) or 'a file'} {what} ({reason}); {advice}"


def ready_folder(path: Path) -> None:
    """Makes a folder and tries to write into it, so that what is refused is refused before the
    work. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path, prefix=".tmp-") as file:
        file.write(b"0")


def ready_file(path: Path) -> None:
    """The same for a file that will be written or replaced; it is not touched. Raises OSError."""
    ready_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.with_name(f".tmp-{path.name}").exists()  # too long a name is refused now
