"""The folder of a run: results/runs/<study>/.

    study.json                          configuration, machine, code, how many records there will be
    rows/<decoder>.<protocol>.jsonl     one record per line, appended; a shard has files of its own
    images/<decoder>/<protocol>/*.png   pictures (reseeds: one folder per seed), with captions.json
    records.parquet                     the records that count, merged at the end

A record that a kill left half written is dropped. A record counts where the same code and weights
decoded the same prompt; of two, the later one. Others stay in their file, so nothing is lost by
trying another version. Shards share a folder; a run has it alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.errors import FolderError, InUseError
from bench.data.files import append, refuse_links, require_space, write_atomically, write_bytes
from bench.prompts.file import write_captions
from bench.records import study
from bench.records.columns import BATCHED, LISTS, MERGED, RESEED, SCHEMA, SCHEMA_VERSION

log = logging.getLogger(__name__)
RECORD_BYTES, PICTURE_BYTES = 30_000, 100_000  # of 256 codes and 256 pixels, generously
SHARDS = "shards"  # the folder of their locks
BEFORE = (".lock", "steps.csv", SHARDS)  # what may lie in a folder before its run
Record = dict[str, Any]  # the columns of `bench.records.columns.RECORD`
T = TypeVar("T")


class Key(NamedTuple):
    """What a record is of. batch: images decoded at once where batches are timed, else 0."""

    decoder: str
    protocol: str
    batch: int
    seed: int
    prompt_index: int

    @property
    def picture(self) -> str:
        """The path of the picture in the run's folder, as records hold it. Pictures of one decoder,
        protocol and seed share a folder, so that it can be evaluated."""
        folder = self.protocol + (f"-{self.seed}" if self.protocol == RESEED else "")
        name = f"{self.protocol}-{self.seed}-{self.prompt_index:05d}.png"
        return f"images/{self.decoder}/{folder}/{name}"


def key_of(record: Mapping[str, Any]) -> Key:
    size = record["batch"] if record["protocol"] == BATCHED else 0
    others = (record[name] for name in Key._fields[3:])
    return Key(record["decoder"], record["protocol"], size, *others)


@dataclass
class RunFolder:
    """An opened folder. records: those that count, without their lists. shard: the name of the
    shard that writes here, "" for a whole run."""

    path: Path
    shard: str = ""
    records: dict[Key, Record] = field(default_factory=dict)

    def read(self, counts: Callable[[Record], bool]) -> None:
        """Takes the records that count, the latest of each key."""
        for path in self._files():
            for record in read_records(path):
                old = self.records.get(key_of(record))
                if (old is None or record["started_at"] >= old["started_at"]) and counts(record):
                    self.records[key_of(record)] = _light(record)

    def append(self, records: Sequence[Record]) -> None:
        """Appends the records of one call. Raises DiskFullError."""
        ending = f".{self.shard}.jsonl" if self.shard else ".jsonl"
        first = key_of(records[0])
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
        name = f"{first.decoder}.{first.protocol}{ending}"
        append(self.path / "rows" / name, "".join(lines).encode())
        self.records |= {key_of(record): _light(record) for record in records}

    def add_picture(self, key: Key, image: Any) -> Record:
        """Writes a picture (a PIL image); returns the columns of its record that say so."""
        drawn = io.BytesIO()
        image.save(drawn, format="PNG")
        write_bytes(self.path / key.picture, drawn.getvalue(), sync=False)
        digest = hashlib.sha256(drawn.getvalue()).hexdigest()[:16]
        return {"image": key.picture, "image_hash": digest}

    def has_picture(self, record: Record) -> bool:
        """Whether the picture that a record names, if any, is there."""
        return not record["image"] or (self.path / record["image"]).is_file()

    def merge(self, keys: Sequence[Key], into: Path | None = None) -> pd.DataFrame:
        """The records of these keys in this order, also as records.parquet in the folder (or
        `into`), with the captions of every folder of pictures."""
        at, tables, count = dict[Key, int](), list[pa.Table](), 0
        for path in self._files():
            counted = [r for r in read_records(path) if _light(r) == self.records.get(key_of(r))]
            at |= {key_of(record): count + i for i, record in enumerate(counted)}
            tables.append(pa.Table.from_pylist(counted, schema=SCHEMA))
            count += len(counted)
        if not keys:
            raise FolderError(f"{self.path} holds no records; run the study first")
        merged = pa.concat_tables(tables).take([at[key] for key in keys]).combine_chunks()
        write_parquet((into or self.path) / MERGED, merged)
        if into is None:
            write_captions(self.path, merged.select(["image", "prompt"]).to_pylist())
        return merged.to_pandas()

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("rows/*.jsonl"))

    def note(self, name: str, change: Callable[[Any], T]) -> T:
        """Makes an entry of study.json what `change` makes of it (None: there is none yet), and
        returns it. Shards take turns."""
        with ExitStack() as held:
            if self.shard:
                turn = held.enter_context((self.path / SHARDS / "study.lock").open("a+"))
                fcntl.flock(turn, fcntl.LOCK_EX)
            identity = study.read_identity(self.path)
            noted = change(identity.get(name))
            study.write_identity(self.path, identity | {name: noted})
        return noted


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, but a half-written last one and damaged ones: a run decodes their
    images again."""
    broken = 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and record.keys() == set(SCHEMA.names):
            yield record
        else:
            broken += 1
    if broken:
        log.warning("%s: %d damaged records are left out", path, broken)


def _light(record: Record) -> Record:
    """Without the lists, which take most of the memory."""
    return {name: value for name, value in record.items() if name not in LISTS and value == value}


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table that is whole or absent, with checksums of its pages. Raises
    DiskFullError."""
    write_atomically(
        path,
        lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True),
    )


@contextmanager
def open_folder(path: Path, identity: Mapping[str, Any], shard: str = "") -> Iterator[RunFolder]:
    """The folder, created or resumed, locked against a second run for as long as it is open.

    identity: config, config_hash and machine; shard: the name of a shard, which shares the folder.
    Raises FolderError where the folder belongs to another schema version, configuration or machine,
    is no run folder, or is in use; DiskFullError.
    """
    identity = {"schema_version": SCHEMA_VERSION, **identity}
    if path.exists() and not path.is_dir():
        raise FolderError(f"{path} is a file, where the folder of a run is expected; name another")
    refuse_links(path)
    if path.exists() and _foreign(path):
        raise FolderError(
            f"{path} is not empty and holds no study.json, so it is no run folder; choose another "
            "run_dir= or empty it"
        )
    begun = any(path.glob("rows/*.jsonl"))
    if begun:
        study.require_same(path, study.read_identity(path), identity)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path, shard):
        _begin(path, identity, begun, shard)
        try:
            yield RunFolder(path, shard)
        except BaseException:
            if {child.name for child in path.iterdir()} == {study.STUDY, ".lock"}:
                shutil.rmtree(path)  # it was refused before its first record
            raise


def _begin(path: Path, identity: Mapping[str, Any], begun: bool, shard: str) -> None:
    """Removes what a killed run has left behind, and writes study.json of a new run. A run that
    stopped before its first record binds nobody; a shard of the same study does."""
    own = f"*.{shard}.jsonl" if shard else "*.jsonl"
    for file in path.glob(f"rows/{own}"):
        with file.open("rb+") as opened:  # half a record, before others are appended
            opened.truncate(opened.read().rfind(b"\n") + 1)
    for stray in () if shard else path.rglob(".tmp-*"):
        stray.unlink()
    written = path / study.STUDY
    beside = study.read_study(written) if shard and written.exists() else {}
    if not begun and any(beside.get(key) != value for key, value in identity.items()):
        study.write_identity(path, identity)


def _foreign(path: Path) -> bool:
    """Whether a folder holds anything but what may lie there before a run, and is no run's. By the
    listing first: a shared file system may say for a minute that a file is not there which was
    looked for too early. Then by a look: a shard may begin the folder at this moment."""
    names = {child.name for child in path.iterdir()}
    other = any(n not in BEFORE and not n.startswith(".tmp-") for n in names)
    return other and study.STUDY not in names and not (path / study.STUDY).exists()


@contextmanager
def _locked(path: Path, shard: str) -> Iterator[None]:
    """A run locks the folder; shards share that lock, and each has one of its own. Raises
    InUseError where another process has it."""
    with ExitStack() as held:
        taken = f"another run is writing to {path}{'' if shard else ', or shards of it are'}; "
        taken += "wait for it or choose another run_dir="
        kind = fcntl.LOCK_SH if shard else fcntl.LOCK_EX
        held.enter_context(_lock(path / ".lock", kind, taken))
        if shard:
            own = path / SHARDS / f"{shard}.lock"
            own.parent.mkdir(exist_ok=True)
            taken = f"another process has shard {shard} of {path}; wait for it, or stop it"
            held.enter_context(_lock(own, fcntl.LOCK_EX, taken))
        yield


@contextmanager
def _lock(path: Path, kind: int, taken: str) -> Iterator[None]:
    """Raises InUseError with the words `taken` where another process has it."""
    with path.open("a+") as file:  # NFS wants both ways
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(taken) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            raise FolderError(
                f"the file system of {path} locks no files ({error.strerror}), so two runs could "
                "write to one folder; choose a run_dir= on another one, or have it mounted with "
                "locks (Lustre: -o flock)"
            ) from error
        yield


def check_space(path: Path, records: int, pictures: int) -> None:
    """Raises DiskFullError before work starts where so many more records, and the pictures of some
    of them, would not fit."""
    what = f"{records:,} records and {pictures:,} pictures"
    need = records * RECORD_BYTES + pictures * PICTURE_BYTES
    require_space(path, need, what, "choose another run_dir=")
