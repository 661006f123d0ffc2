"""Captions and prompts in files: lines, tables and JSON, read strictly and with limits.

Why here: prompts of a study, captions of a folder of images and captions to train on are the same
kinds of file. A line ends at a newline and nowhere else: str.splitlines() also cuts captions at
U+2028, U+0085 and vertical tabs, which would shift all that follow.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from decoders.documents import no_file
from decoders.nearest import unknown

MOST_BYTES = 1 << 30  # COCO's largest caption file has 92 MB
MOST_CHARACTERS = 10_000  # of one field; a text encoder reads a few hundred
BREAKS = re.compile(r"[ \t]*[\n\r\v\f\x85\u2028\u2029]+[ \t]*")


class TextFileError(ValueError):
    """A file that cannot be read as it should be. Who reads it gives it a kind of its own."""


@contextmanager
def said_as(kind: type[Exception]) -> Iterator[None]:
    """TextFileErrors within are raised as errors of another kind, in the same words."""
    try:
        yield
    except TextFileError as error:
        raise kind(str(error)) from error


def read_text(path: Path, hint: str = "correct the path") -> str:
    """The text of a UTF-8 file, newlines as they are, a byte-order mark removed. hint: what to do
    where there is none.

    Raises TextFileError: nothing there, a folder, a pipe or device, another encoding, too large;
    and any other OSError as it comes.
    """
    try:
        if kind := no_file(path):
            raise TextFileError(f"{path} is {kind}, a file is expected")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise TextFileError(f"{path} has {size} bytes, at most {MOST_BYTES} are read; split it")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise TextFileError(f"the file {path} does not exist; {hint}") from error
    except UnicodeDecodeError as error:
        raise TextFileError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from error


def read_items(path: Path, what: str, kinds: Sequence[str], hint: str) -> Any:
    """What a file holds, by its ending: the lines of a .txt, the rows of a .csv or .tsv by column,
    the value of a .json, those of the lines of a .jsonl. what: it is for; kinds: endings that are
    read; hint: see `read_text`. Raises TextFileError."""
    kind, source = path.suffix.lower(), str(path)
    if kind not in kinds and not path.is_dir():
        raise TextFileError(unknown(f"kind of {what} file", path.suffix or path.name, kinds))
    text = read_text(path, hint)
    if kind == ".json":
        return parse_json(text, source)
    if kind in (".csv", ".tsv"):
        return parse_table(text, "," if kind == ".csv" else "	", source)
    lines = lines_of(text)
    if kind != ".jsonl":
        return lines
    return [parse_json(x, f"{path}, line {i},") for i, x in enumerate(lines, 1) if x.strip()]


def lines_of(text: str) -> list[str]:
    """Lines, which end at \\n, \\r\\n or \\r; blank ones at the end are left out."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def one_line(text: str) -> str:
    """The text with every line break inside it as one space, and none around it."""
    return BREAKS.sub(" ", text).strip()


def parse_json(text: str, source: str) -> Any:
    """A JSON value. Raises TextFileError: no JSON, a key that stands twice, numbers of thousands of
    digits, or lists within lists too deep to be read."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise TextFileError(f"{source} is nested too deep; a flat list is expected") from error
    except TextFileError as error:
        raise TextFileError(f"{source}: {error}") from error
    except json.JSONDecodeError as error:
        raise TextFileError(f"{source} is not JSON: {error}") from error
    except ValueError as error:  # Python reads integers of up to 4300 digits
        reason = str(error).partition(";")[0]
        raise TextFileError(f"{source} holds a number that is too large: {reason}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise TextFileError(f"an object has the key {twice[:60]!r} twice; keep one")
    return found


def parse_table(
    text: str, delimiter: str, source: str, quotes: bool = True
) -> list[dict[str, str]]:
    """Rows by column name; blank lines are skipped. quotes: fields in quotes may hold delimiters
    and newlines.

    Raises TextFileError: no header, a column that stands twice, a row with more or fewer fields
    than the header, a quote that is not closed.
    """
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting,
                       strict=quotes)  # fmt: skip
    try:
        rows = [(lines.line_num, row) for row in lines if any(field.strip() for field in row)]
    except csv.Error as error:
        raise TextFileError(
            f"{source}, line {lines.line_num}, cannot be read as a table ({error}); write a field "
            'with quotes in it as "..." and each of its quotes twice'
        ) from error
    if not rows:
        return []
    header = [name.strip() for name in rows[0][1]]
    lower = [name.lower() for name in header if name]
    if len(set(lower)) < len(lower):
        raise TextFileError(f"{source}: a column is named twice: {', '.join(header)}")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise TextFileError(
                f"{source}, line {line}, has {len(row)} fields, the header {len(header)}; a field "
                f"that holds {delimiter!r} must stand in quotes"
            )
    return [dict(zip(header, row, strict=True)) for _, row in rows[1:]]


def require_size(text: str, what: str) -> None:
    """Raises TextFileError for a text of more than MOST_CHARACTERS; what: how messages call it."""
    if len(text) > MOST_CHARACTERS:
        raise TextFileError(
            f"{what} has {len(text)} characters, at most {MOST_CHARACTERS} are read; is a quote or "
            "a newline missing before its end?"
        )
