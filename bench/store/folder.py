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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.errors import FolderError, InUseError
from bench.data.files import append, write_atomically, write_bytes
from bench.prompts.file import write_captions
from bench.store import study
from bench.store.columns import BATCHED, LISTS, MERGED, RESEED, SCHEMA, SCHEMA_VERSION
from bench.store.findings import read_findings, write_findings

log = logging.getLogger(__name__)
SHARDS = "shards"  # the folder of their locks
BEFORE = (".lock", SHARDS)  # what may lie in a folder before its run
Record = dict[str, Any]  # the columns of `bench.store.columns.RECORD`


class Key(NamedTuple):
    """Identifies a record. batch: images decoded at once where batches are timed, else 0."""

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

    @property
    def total(self) -> int:
        """How many records there will be."""
        return int(study.read_study(self.path).get("rows", len(self.records)))

    @property
    def progress(self) -> str:
        """Says how far the run is: `10 of 26 images`."""
        return f"{len(self.records):,} of {self.total:,} images"

    def resume(
        self,
        prompts: Mapping[Key, str],
        code: Mapping[str, str],
        entries: Mapping[str, Any],
        *,
        force: bool,
        retry: bool,
    ) -> None:
        """Reads the records that the same code and weights have decoded for these prompts. `force`
        takes those of other code too, and marks the run. Warnings say which do not count.

        code: of each decoder (`bench.run.decoders`). entries: of study.json. retry: failed records
        do not count.
        """
        refused: dict[Key, str] = {}

        def counts(record: Record) -> bool:
            key = key_of(record)
            if key not in prompts:
                return False
            if record["prompt"] != prompts[key]:
                refused[key] = "of another prompt"
            elif record["image"] and not (self.path / record["image"]).is_file():
                refused[key] = "without their pictures"
            elif record["code"] == code[key.decoder] or force:
                return True
            else:
                commit = record["git_commit"][:10] + " with changes" * record["git_dirty"]
                refused[key] = f"of other code or weights (commit {commit})"
            return False

        self.read(counts)
        rejected = Counter((k.decoder, why) for k, why in refused.items() if k not in self.records)
        for (decoder, why), count in rejected.items():
            log.warning(
                "%s: %d records are %s, so their images are decoded again; resume=force keeps "
                "records of other code, and marks the run", decoder, count, why,
            )  # fmt: skip
        failed = {k: r["error"] for k, r in self.records.items() if r["status"] == "failed"}
        if retry:
            self.records = {k: r for k, r in self.records.items() if k not in failed}
        for decoder, count in Counter(k.decoder for k in failed if not retry).items():
            log.warning(
                "%s: %d images failed in an earlier run (%s). Nothing of the decoder has changed "
                "since, so they stay failed; retry_failed=true decodes them again",
                decoder, count, next(e for k, e in failed.items() if k.decoder == decoder),
            )  # fmt: skip
        forced = {k.decoder for k, r in self.records.items() if r["code"] != code[k.decoder]}
        noted = {"code": dict(code), "forced": sorted(forced), **entries}
        study.write_study(self.path, noted)
        if len(self.records) < len(prompts):  # nobody may take them for those of a finished run
            (self.path / MERGED).unlink(missing_ok=True)
            found = read_findings(self.path)
            if found.done:
                write_findings(self.path, replace(found, done=False))

    def read(self, counts: Callable[[Record], bool]) -> None:
        """Reads the records that count, the latest of each key."""
        for path in self._files():
            for record in read_records(path):
                old = self.records.get(key_of(record))
                if (old is None or record["started_at"] >= old["started_at"]) and counts(record):
                    self.records[key_of(record)] = _without_lists(record)

    def append(self, records: Sequence[Record]) -> None:
        """Appends the records of one call that are not recorded yet. Their pictures (`picture`, a
        PIL image) are written first: a record's picture always exists. Raises DiskFullError."""
        fresh = {key_of(r): r for r in records if key_of(r) not in self.records}
        for key, record in fresh.items():
            if (picture := record.pop("picture", None)) is not None:
                file = io.BytesIO()
                picture.save(file, format="PNG")
                write_bytes(self.path / key.picture, file.getvalue(), sync=False)
                digest = hashlib.sha256(file.getvalue()).hexdigest()[:16]
                record |= {"image": key.picture, "image_hash": digest}
        if not fresh:
            return
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in fresh.values()]
        name = f"{records[0]['decoder']}.{records[0]['protocol']}"
        name += f".{self.shard}.jsonl" if self.shard else ".jsonl"
        append(self.path / "rows" / name, "".join(lines).encode())
        self.records |= {key: _without_lists(record) for key, record in fresh.items()}

    def table(self, keys: Sequence[Key]) -> pa.Table:
        """Reads the records of these keys, in this order."""
        places, tables, count = dict[Key, int](), list[pa.Table](), 0
        for path in self._files():
            records, latest = read_records(path), self.records
            counted = [r for r in records if _without_lists(r) == latest.get(key_of(r))]
            places |= {key_of(record): count + i for i, record in enumerate(counted)}
            tables.append(pa.Table.from_pylist(counted, schema=SCHEMA))
            count += len(counted)
        return pa.concat_tables(tables).take([places[key] for key in keys]).combine_chunks()

    def merge(self, keys: Sequence[Key]) -> pd.DataFrame:
        """Writes the records of these keys as records.parquet, and the captions of every folder of
        pictures; returns them."""
        table = self.table(keys)
        write_parquet(self.path / MERGED, table)
        write_captions(self.path, table.select(["image", "prompt"]).to_pylist())
        return table.to_pandas()

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("rows/*.jsonl"))


def read_folder(path: Path) -> RunFolder:
    """Reads a run's folder without locking it: the records that count by its study.json, none where
    there is no run."""
    folder, identity = RunFolder(path), study.read_study(path)
    code, forced = identity.get("code", {}), identity.get("forced", [])
    folder.read(lambda r: r["code"] == code.get(r["decoder"]) or r["decoder"] in forced)
    return folder


def read_records(path: Path) -> Iterator[Record]:
    """Yields the records of a file. Leaves out damaged ones and a half-written last one: a run
    decodes their images again."""
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


def _without_lists(record: Record) -> Record:
    """Drops lists, which take most of the memory, and NaN, which equals nothing."""
    return {name: value for name, value in record.items() if name not in LISTS and value == value}


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table whole or not at all, with checksums of its pages. Raises DiskFullError."""
    write_atomically(
        path,
        lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True),
    )


@contextmanager
def open_folder(path: Path, identity: Mapping[str, Any], shard: str = "") -> Iterator[RunFolder]:
    """Creates or resumes a folder, locked against a second run for as long as it is open.

    identity: config, config_hash and machine; shard: the name of a shard, which shares the folder.
    Raises FolderError where the folder belongs to another schema version, configuration or machine,
    is no run folder, or is in use; DiskFullError.
    """
    identity = {"schema_version": SCHEMA_VERSION, **identity}
    if path.exists() and not path.is_dir():
        raise FolderError(f"{path} is a file, where the folder of a run is expected; name another")
    if path.exists() and _holds_no_run(path):
        raise FolderError(
            f"{path} is not empty and holds no study.json, so it is no run folder; choose another "
            "run_dir= or empty it"
        )
    path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        _lock(locks, path, shard)
        if any(path.glob("rows/*.jsonl")):
            study.require_same(path, identity)
        else:  # a run that stopped before its first record binds nobody
            study.write_study(path, identity)
        _remove_leftovers(path, shard)
        try:
            yield RunFolder(path, shard)
        except BaseException:
            if {child.name for child in path.iterdir()} == {study.STUDY, ".lock"}:
                shutil.rmtree(path)  # it was refused before its first record
            raise


def _remove_leftovers(path: Path, shard: str) -> None:
    """Removes what a killed run has left behind: half a record, before others are appended, and
    files that it had not yet renamed."""
    for file in path.glob(f"rows/*.{shard}.jsonl" if shard else "rows/*.jsonl"):
        with file.open("rb+") as opened:
            opened.truncate(opened.read().rfind(b"\n") + 1)
    for stray in () if shard else path.rglob(".tmp-*"):
        stray.unlink()


def _holds_no_run(path: Path) -> bool:
    """Whether a folder holds files but no run. Lists it first, as a shared file system may deny for
    a minute a file that was looked for too early. Then looks again: a shard may be beginning it."""
    names = {child.name for child in path.iterdir()}
    others = any(n not in BEFORE and not n.startswith(".tmp-") for n in names)
    return others and study.STUDY not in names and not (path / study.STUDY).exists()


def _lock(locks: ExitStack, path: Path, shard: str) -> None:
    """Locks the folder for a run. Shards share that lock, and each has one of its own. Raises
    InUseError where another process has it."""
    message = f"another run is writing to {path}{'' if shard else ', or shards of it are'}; "
    message += "wait for it or choose another run_dir="
    files = [(path / ".lock", fcntl.LOCK_SH if shard else fcntl.LOCK_EX, message)]
    if shard:
        message = f"another process has shard {shard} of {path}; wait for it, or stop it"
        files.append((path / SHARDS / f"{shard}.lock", fcntl.LOCK_EX, message))
    for name, kind, message in files:
        name.parent.mkdir(exist_ok=True)
        file = locks.enter_context(name.open("a+"))  # NFS wants both ways
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(message) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            raise FolderError(
                f"the file system of {path} locks no files ({error.strerror}), so two runs could "
                "write to one folder; choose a run_dir= on another one, or have it mounted with "
                "locks (Lustre: -o flock)"
            ) from error
