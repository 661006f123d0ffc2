"""The schema of a result row, and rows as Parquet files that are whole or absent.

One row an image of a protocol. A row is written to a temporary file, synced and renamed, so a
killed run leaves no half row; all rows of a run are merged into records.parquet at
the end. Every file holds a SHA-256 of itself, so no byte of it can change unnoticed. A change of a
column's name, type or meaning raises SCHEMA_VERSION: a run goes on with rows of this version alone,
and rows of another are read where READABLE has it. A column that came later (LATER) says nothing in
rows without it.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.errors import FolderError
from bench.data.files import write_atomically

SCHEMA_VERSION = 7
READABLE = (5, 6, SCHEMA_VERSION)  # version 5 lacks LOAD; in 5 and 6 an image may be timed twice
# In the file's metadata, followed by 64 hex digits: the SHA-256 of the file with zeros in their
# place.
SEAL, DIGITS = b"lantern_bench.sha256=", 64

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
LISTS = {
    "accepted": pa.int16(),  # per step: drafts accepted
    "kind": pa.uint8(),  # per code: decoders.api.CodeKind
    "depth": pa.uint8(),  # per code: depth in the draft tree
    "step": pa.int32(),  # per code: the target forward that committed it
    "moved": pa.float32(),  # per code: mass moved, TV(p, p_A)
    "bound": pa.float32(),  # per code: bound declared on it
    "codes": pa.int32(),
    "tv_output": pa.float32(),  # per recorded pair: true output TV of the rule
    "tv_declared_bound": pa.float32(),  # what the rule declares there, over all children
    "tv_output_bound": pa.float32(),  # what its acceptance allows there (decoders.md, lemma R)
}
# Seconds, codes a target forward; NaN where not measured.
MEASURED = (
    "seconds_text", "seconds_prefill", "seconds_draft", "seconds_forward", "seconds_accept",
    "seconds_vq", "seconds_total", "seconds_batch", "mal", "mal_no_bonus",
    "mal_expected",  # of the drafter (`decoders.api.Trace.expected`)
)  # fmt: skip
# Processor seconds of the run's own process per second while the image was timed; shares of the
# cores that others and the hypervisor took; whether that was too much (`latency.busy`).
LOAD = {"cpu_own": _REAL, "cpu_others": _REAL, "cpu_steal": _REAL, "disturbed": pa.bool_()}
# Share of a call's row-steps in which a row had no image left to decode (`decoders.api.Trace`).
LATER = LOAD | {"idle": _REAL}
SCHEMA = pa.schema(
    [
        ("schema_version", _WHOLE), ("study", _TEXT), ("protocol", _TEXT), ("model", _TEXT),
        ("decoder", _TEXT), ("loop", _TEXT), ("drafter", _TEXT), ("tree", _TEXT),
        ("acceptance", _TEXT), ("backend", _TEXT), ("device", _TEXT), ("dtype", _TEXT),
        ("temperature", _REAL), ("cfg", _REAL), ("top_k", _WHOLE), ("top_p", _REAL),
        ("prompt_index", _WHOLE), ("prompt_id", _TEXT), ("prompt", _TEXT), ("category", _TEXT),
        ("seed", _WHOLE), ("batch", _WHOLE), ("block", _WHOLE), ("status", _TEXT), ("error", _TEXT),
        *((name, _REAL) for name in MEASURED), *LATER.items(),
        ("nfe", _WHOLE), ("drafter_calls", _WHOLE), ("tree_depth", _WHOLE), ("tree_nodes", _WHOLE),
        *((name, pa.list_(kind)) for name, kind in LISTS.items()),
        ("path", _TEXT), ("image", _TEXT), ("image_hash", _TEXT), ("peak_memory_mb", _REAL),
        ("git_commit", _TEXT),
        ("git_dirty", pa.bool_()), ("versions", _TEXT), ("cpu", _TEXT), ("gpu", _TEXT),
        ("threads", _WHOLE), ("config_hash", _TEXT), ("weights_hash", _TEXT),
        ("sources", _TEXT), ("prompt_hash", _TEXT), ("started_at", _TEXT),
    ]
)  # fmt: skip


PLACE = ("decoder", "protocol", "seed", "prompt_index")  # what its file's name says
STEM = re.compile(r"([a-z]+)(\d{0,9})-(\d{1,18})-(\d{1,18})")


def place_of(cell: str, stem: str) -> dict[str, Any] | None:
    """What the place of a row says of it (`bench.config.schedule.Batch.stem`): columns; None where
    it is no place of a row."""
    if (found := STEM.fullmatch(stem)) is None:
        return None
    protocol, size, *numbers = found.groups("0")
    place = (cell.rpartition("-")[0], protocol, *map(int, numbers))
    return dict(zip(PLACE, place, strict=True)) | ({"batch": int(size)} if size else {})


def image_name(cell: str, stem: str) -> str:
    """The picture's path inside its run's folder, as rows hold it. Pictures of one decoder,
    protocol and seed lie in a folder of their own, so that each folder can be evaluated."""
    protocol, seed = stem.split("-")[:2]
    return f"images/{cell}/{protocol}{f'-{seed}' * (protocol == 'reseed')}/{stem}.png"


def empty_measures() -> dict[str, Any]:
    """The measured columns of a row that measured nothing: NaN, 0, empty lists."""
    row: dict[str, Any] = dict.fromkeys((*MEASURED, *LATER), math.nan) | {"disturbed": False}
    row |= dict.fromkeys(("nfe", "drafter_calls", "tree_depth", "tree_nodes"), 0)
    row |= {column: [] for column in LISTS}
    row |= {"path": "", "image": "", "image_hash": "", "peak_memory_mb": math.nan}
    return row


def to_table(row: Mapping[str, Any]) -> pa.Table:
    """A table of one row in the schema. Raises FolderError on a missing or unknown column."""
    missing, extra = set(SCHEMA.names) - set(row), set(row) - set(SCHEMA.names)
    if missing or extra:
        raise FolderError(
            f"a row does not fit schema {SCHEMA_VERSION}: missing {sorted(missing)}, "
            f"unknown {sorted(extra)}"
        )
    return pa.Table.from_pylist([dict(row)], schema=SCHEMA)


def read(path: Path) -> pa.Table | None:
    """The rows of a file, or None where it is not a whole file of this schema that `write` made."""
    content = path.read_bytes()
    if not _seal_holds(content):
        return None
    try:
        table = brought_up(pq.read_table(io.BytesIO(content)))
    except (pa.ArrowException, OSError):  # whoever can write a file can also seal it
        return None
    return table.replace_schema_metadata() if table.schema.equals(SCHEMA) else None


def brought_up(table: pa.Table) -> pa.Table:
    """Rows of a readable version with all columns of LATER, in the order of the schema."""
    lacking = [name for name in LATER if name not in table.schema.names]
    if not lacking:
        return table
    for name, kind in ((name, LATER[name]) for name in lacking):
        nothing = False if name == "disturbed" else math.nan
        table = table.append_column(pa.field(name, kind), pa.array([nothing] * len(table), kind))
    return table.select([name for name in SCHEMA.names if name in table.schema.names])


def damaged(path: Path) -> bool:
    """Whether a file that `write` made is not as it was written; False for files of others."""
    content = path.read_bytes()
    return SEAL in content and not _seal_holds(content)


def _seal_holds(content: bytes) -> bool:
    at = content.rfind(SEAL) + len(SEAL)
    return at >= len(SEAL) and _sealed(content) == content


def _sealed(content: bytes) -> bytes:
    """A file's content with its own SHA-256 in the place that `SEAL` marks."""
    at = content.rfind(SEAL) + len(SEAL)
    before, after = content[:at], content[at + DIGITS :]
    digest = hashlib.sha256(before + b"0" * DIGITS + after).hexdigest()
    return before + digest.encode() + after


def other_version(path: Path) -> str:
    """That the rows of a file are of another schema version, and what to do about it; "" where they
    are of this one, or the file has no versions (whoever reads it says what it is)."""
    try:
        found = pq.read_table(path, columns=["schema_version"], partitioning=None)
    except (pa.ArrowException, KeyError, OSError):
        return ""
    versions = set(found.column(0).to_pylist()) - {*READABLE}
    if not versions:
        return ""
    return (
        f"{path} has rows of schema version {sorted(versions)}, this program reads "
        f"{SCHEMA_VERSION}: read it with the version of lantern-bench that made it, or run the "
        "study again into another run_dir="
    )


def write(path: Path, table: pa.Table) -> None:
    """Writes a table so that `path` is whole or absent at any moment. Raises DiskFullError."""
    marked = table.replace_schema_metadata({"seal": SEAL + b"0" * DIGITS})

    def fill(file: IO[bytes]) -> None:
        content = io.BytesIO()
        pq.write_table(marked, content, compression="zstd")
        file.write(_sealed(content.getvalue()))

    write_atomically(path, fill)
