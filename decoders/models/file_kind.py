"""What a file that should hold tensors really is, by its first bytes, before anything reads it.

A download that failed leaves a file of the right name: an empty one, a pointer of Git LFS, the
HTML page of a login. Readers of weights call those "corrupt header"; here each has its own message.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from decoders.api import DecoderError
from decoders.stand_ins import FETCH, SEEN, no_file, stand_in

TAR = slice(257, 262)  # where a tar archive says so
PICKLE, ZIP, GZIP = b"\x80", b"PK\x03\x04", b"\x1f\x8b"


def require_weights(path: Path) -> None:
    """Raises DecoderError where the file of this name holds no weights, and says what it is.

    .safetensors must begin as safetensors do; other endings as PyTorch files (zip or pickle) do.
    """
    if not path.is_file():
        raise DecoderError(f"{path} is {no_file(path) or 'not there'}: expected a file of weights")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(SEEN)
    found = _no_weights(head, size) or (
        _not_safetensors(head) if path.suffix == ".safetensors" else _not_pytorch(path, head, size)
    )
    if found:
        raise DecoderError(f"{path} cannot be read: it is {found}")


def zipped(path: Path) -> bool:
    """Whether a file is a whole zip archive, as torch writes them since 1.6."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # its end record is damaged
        return False


def _no_weights(head: bytes, size: int) -> str:
    """What a file is that is of no use under any ending; "" where it may be weights."""
    if found := stand_in(head, size):
        return found
    if head.startswith(GZIP) or head[TAR] == b"ustar":
        return "a compressed or tar archive; unpack it, and name the file inside"
    first = " ".join(head[:40].decode("latin-1").split())
    if first.isascii() and first.isprintable():
        return f"text that begins with {first!r}; {FETCH}"
    return ""


def _is_safetensors(head: bytes, size: int) -> bool:
    """Eight bytes with the header's length, and then the header, which is JSON."""
    return head[8:9] == b"{" and 8 + int.from_bytes(head[:8], "little") <= size


def _not_safetensors(head: bytes) -> str:
    if head.startswith(ZIP):
        return "a PyTorch file or a zip archive; give it the ending .bin or .pt"
    return ""  # the reader of safetensors names what is wrong with the rest


def _not_pytorch(path: Path, head: bytes, size: int) -> str:
    if _is_safetensors(head, size):
        return "a safetensors file by its first bytes; give it the ending .safetensors"
    if head.startswith(ZIP) and not zipped(path):
        return f"a truncated PyTorch file of {size} bytes; {FETCH}"
    if not head.startswith((ZIP, PICKLE)):
        return f"neither a PyTorch file (zip, pickle) nor text; it is damaged: {FETCH}"
    return ""
