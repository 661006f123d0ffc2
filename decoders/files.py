"""Files that come from elsewhere, text, tables, JSON, pictures: read strictly, with limits, here
alone.

Prompts, captions, a checkpoint's config.json come from a download, a colleague or an editor. What
is wrong with one is said with its name and the line or key. A download that failed leaves a file of
the right name (an empty one, a pointer, a page): each kind has its own message. No torch here.

A line ends at a newline and nowhere else: str.splitlines() also cuts captions at U+2028, U+0085 and
vertical tabs, which would shift all that follow.
"""

from __future__ import annotations

import csv
import io
import json
import re
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, PngImagePlugin

from decoders.errors import DecoderError, unknown
from decoders.kinds import validate_entries

MOST_BYTES = 1 << 30  # COCO's largest caption file has 92 MB
MOST_CHARACTERS = 10_000  # of one field; a text encoder reads a few hundred
LINE_BREAKS = re.compile(r"[ \t]*[\n\r\v\f\x85\u2028\u2029]+[ \t]*")
OTHER_SPACES = re.compile("[\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
HEAD_BYTES = 512  # bytes that tell what a file is
LFS_POINTER, ANNEX_POINTER = b"version https://git-lfs", b"/annex/objects/"
PAGE_BEGINNINGS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<error")
FETCH_HINT = "download it again, and compare its size with the one that its source gives"


def read_text(path: Path, hint: str = "correct the path") -> str:
    """Reads the text of a UTF-8 file, newlines as they are, a byte-order mark removed. hint: what
    to do where there is no such file. Raises DecoderError: nothing there, a folder, a pipe or
    device, no text, too large; and any other OSError as it comes."""
    if kind := no_file(path):
        raise DecoderError(f"{path} is {kind}, a text file is expected")
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise DecoderError(f"{path} has {size} bytes, at most {MOST_BYTES} are read; split it")
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DecoderError(f"the file {path} does not exist; {hint}") from error
    if kind := placeholder(content[:HEAD_BYTES], len(content)):
        raise DecoderError(f"{path} cannot be read: it is {kind}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DecoderError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from error


def no_file(path: Path) -> str:
    """Says what a path is that is there and is no file; "" for a file, and where nothing is."""
    if path.is_file() or not path.exists():
        return ""
    return "a folder" if path.is_dir() else "a named pipe, a socket or a device"


def placeholder(head: bytes, size: int) -> str:
    """Says what stands in a file's place (nothing, a Git LFS pointer, a web page, ...), by its
    first bytes; "" for a file that may be real."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return f"empty (0 bytes); write into it what belongs there, or {FETCH_HINT}"
    if text.startswith(LFS_POINTER):
        return (
            f"a Git LFS pointer of {size} bytes, which stands for the file; run `git lfs pull` in "
            "its folder"
        )
    if ANNEX_POINTER in head[:HEAD_BYTES] and size < HEAD_BYTES:
        return "a git-annex pointer, which stands for the file; run `git annex get` in its folder"
    if text[:16].lower().startswith(PAGE_BEGINNINGS):
        return (
            "an HTML or XML page, such as one that asks for a login; download the file itself, "
            "with access to it"
        )
    if not any(head):
        return f"{min(size, HEAD_BYTES)} zero bytes at its beginning, a broken copy; {FETCH_HINT}"
    return ""


# ---- JSON ---------------------------------------------------------------------------------------


def read_object(path: Path, kinds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Reads the object that a JSON file holds; `kinds`: what certain keys must be, where they are
    there. A null under one of them means not given. Raises DecoderError."""
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise DecoderError(f"{path} must hold an object, found {type(value).__name__}")
    return validate_entries(value, kinds or {}, str(path))


def parse_json(text: str | bytes, source: str, nan: bool = False) -> Any:
    """A JSON value. nan: NaN and infinity are read, which rows have. Raises DecoderError: no JSON,
    a key twice, numbers of thousands of digits, or lists within lists too deep to be read."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            ((name, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise DecoderError(f"{source} names {name} twice; keep one of them")
        return values

    def constant(name: str) -> float:
        if nan:
            return float(name)
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant)
    except DecoderError:
        raise
    except (ValueError, RecursionError) as error:
        raise DecoderError(
            f"{source} is not valid JSON ({error}); correct it, or make or download it again"
        ) from error


# ---- prompts and captions -----------------------------------------------------------------------


def read_items(path: Path, what: str, kinds: Sequence[str], hint: str, quotes: bool = True) -> Any:
    """Reads what a file holds, by its ending: the lines of a .txt, the rows of a .csv or .tsv by
    column without blank lines, the value of a .json, those of the lines of a .jsonl. what: it is
    for; kinds: endings that are read; hint: see `read_text`; quotes: whether fields in quotes may
    hold delimiters and newlines. Raises DecoderError; of a table: no header, a column that stands
    twice, a row with more or fewer fields than the header, a quote that is not closed."""
    kind = path.suffix.lower()
    if kind not in kinds and path.is_file():
        raise DecoderError(unknown(f"kind of {what} file", path.suffix or path.name, kinds))
    text = read_text(path, hint)
    if kind == ".json":
        return parse_json(text, str(path))
    if kind not in (".csv", ".tsv"):
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        while lines and not lines[-1].strip():  # blank ones at the end
            lines.pop()
        if kind != ".jsonl":
            return lines
        return [parse_json(x, f"{path}, line {i},") for i, x in enumerate(lines, 1) if x.strip()]
    delimiter = "," if kind == ".csv" else "\t"
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    file = io.StringIO(text, newline="")
    table = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=quotes)
    try:
        rows = [(table.line_num, row) for row in table if any(field.strip() for field in row)]
    except csv.Error as error:
        raise DecoderError(
            f"{path}, line {table.line_num}, cannot be read as a table ({error}); write a field "
            'with quotes in it as "..." and each of its quotes twice'
        ) from error
    if not rows:
        return []
    header = [name.strip() for name in rows[0][1]]
    lower = [name.lower() for name in header if name]
    if len(set(lower)) < len(lower):
        raise DecoderError(f"{path}: a column is named twice: {', '.join(header)}")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise DecoderError(
                f"{path}, line {line}, has {len(row)} fields, the header {len(header)}; a field "
                f"that holds {delimiter!r} must stand in quotes"
            )
    return [dict(zip(header, row, strict=True)) for _, row in rows[1:]]


def one_line(text: str) -> str:
    """Returns a caption as it is read: white space and line breaks are single spaces, none around
    it. An accent is a part of its letter (NFC), as files of macOS have the two apart. Characters
    without a shape (joiners, soft hyphens, byte-order marks, directions of writing) go."""
    plain = OTHER_SPACES.sub(" ", LINE_BREAKS.sub(" ", unicodedata.normalize("NFC", text)))
    return "".join(c for c in plain if unicodedata.category(c) != "Cf").strip()


def require_readable(text: str, what: str) -> None:
    """Raises DecoderError for a text of more than MOST_CHARACTERS, and for control characters and
    halves of characters, which no file or terminal can hold; what: how messages call it."""
    if len(text) > MOST_CHARACTERS:
        raise DecoderError(
            f"{what} has {len(text)} characters, at most {MOST_CHARACTERS} are read; is a quote or "
            "a newline missing before its end?"
        )
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
        raise DecoderError(f"{what} holds control characters: {text[:60]!r}; remove them")


# ---- pictures -----------------------------------------------------------------------------------
# Pillow clips 16-bit grey to white without a word, and its errors are of a dozen types.

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
HIDDEN_FILE_HINT = (
    "names that begin with a dot are of hidden files (macOS makes ._1.png), not of pictures"
)
# Modes that Pillow converts to RGB. An alpha channel is left out, as clean-fid does.
READABLE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")
# What Pillow raises for damaged files, besides OSError, and for pictures that are too large.
PICTURE_ERRORS = (
    *(OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError),
)
# The most text that a PNG may hold: the prompts and settings of a drawing program are more than
# Pillow's 1 MB for one of them, and are not read here.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY


def is_picture(file: Path) -> bool:
    """Tells whether a file is a picture, by its name."""
    return file.suffix.lower() in PICTURE_ENDINGS and not file.name.startswith(".")


def open_rgb(file: Path) -> Image.Image:
    """Reads a picture file as RGB. Raises DecoderError where it cannot be read, and for a mode that
    says nothing of its range or that Pillow does not convert."""
    if kind := no_file(file):  # to open a pipe waits for ever
        raise DecoderError(f"{file} is {kind}, a picture is expected; remove it")
    try:
        with Image.open(file) as image:
            if image.mode in READABLE_MODES:
                return image.convert("RGB")
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
                high = np.asarray(image) >> 8  # of 16 bits, as Pillow reads 16-bit colours
                return Image.fromarray(high.astype(np.uint8)).convert("RGB")
            mode = image.mode
    except PICTURE_ERRORS as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DecoderError(
            f"{file} is not a readable image: {reason}; make it again, or remove it"
        ) from error
    raise DecoderError(
        f"{file} has Pillow's mode {mode}, which is not read; expected {', '.join(READABLE_MODES)} "
        "or 16-bit grey: save it as RGB of 8 bits"
    )
