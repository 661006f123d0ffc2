"""The folder of a run, which holds:

    study.json                          configuration, machine, code, how many rows there will be
    rows/<decoder>.<protocol>.jsonl     one row per line, appended; a shard has files of its own
    images/<decoder>/<protocol>/*.png   pictures (reseeds: one folder per seed), with captions.json
    records.parquet                     the rows that count, merged at the end

A row that a kill left half written is dropped. A row counts where the same code and weights decoded
the same prompt; of two, the later one. Others stay in their file, so nothing is lost by trying
another version. Shards share a folder; a run has it alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.errors import FolderError, InUseError, plural
from bench.files import TEMPORARY, append, write_atomically, write_bytes, write_text
from bench.prompts.sources import CAPTIONS_FILE
from bench.store.columns import BATCHED, LISTS, MERGED, RESEED, SCHEMA, SCHEMA_VERSION, Row
from bench.store.facts import (
    STUDY,
    Findings,
    read_findings,
    read_study,
    require_same,
    write_findings,
    write_study,
)
from bench.version import short_commit
from decoders.files import parse_json

log = logging.getLogger(__name__)
SHARDS = "shards"  # the folder of their locks
LOCK = ".lock"
BEFORE_A_RUN = (LOCK, SHARDS)  # what may lie in a folder before its run


class Key(NamedTuple):
    """Identifies a row. batch: images decoded at once where batches are timed, else 0."""

    decoder: str
    protocol: str
    batch: int
    seed: int
    prompt_index: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Key:
        size = row["batch"] if row["protocol"] == BATCHED else 0
        return cls(row["decoder"], row["protocol"], size, row["seed"], row["prompt_index"])


def _order(row: Row) -> tuple[bool, str]:
    return row["status"] == "ok", row["started_at"]


@dataclass
class RunFolder:
    """An opened folder. rows: those that count, without their lists. shard: the name of the shard
    that writes here, "" for a whole run; lock: what its lock file was when it was opened, None
    where it is only read."""

    path: Path
    shard: str = ""
    rows: dict[Key, Row] = field(default_factory=dict)
    lock: os.stat_result | None = None

    @property
    def is_there(self) -> bool:
        """Whether the folder that was opened still has its name, and no other one has it now."""
        if self.lock is None:
            return self.path.is_dir()
        try:
            return os.path.samestat(self.lock, (self.path / LOCK).stat())
        except OSError:
            return False

    def require_there(self) -> None:
        """Raises FolderError where the folder was removed or renamed since it was opened."""
        if not self.is_there:
            raise FolderError(
                f"the run's folder {self.path} was removed or renamed while the run went on, and "
                "nothing more is written there. Where it was renamed, give it its name again and "
                "run the same command: it resumes"
            )

    @property
    def total(self) -> int:
        return int(read_study(self.path).get("rows", len(self.rows)))

    @property
    def progress(self) -> str:
        """Says how far the run is: `10 of 26 images`."""
        return f"{len(self.rows):,} of {self.total:,} images"

    def resume(
        self,
        prompts: Mapping[Key, str],
        code: Mapping[str, str],
        entries: Mapping[str, Any],
        *,
        retry: bool,
    ) -> None:
        """Reads the rows that the same code and weights have decoded for these prompts. Warnings
        say which do not count. code: of each decoder (`bench.run.contender`); entries: of
        study.json; retry: failed rows do not count."""
        refused: dict[Key, str] = {}

        def counts(row: Row) -> bool:
            key = Key.of(row)
            if key not in prompts:
                return False
            if row["prompt"] != prompts[key]:
                refused[key] = "of another prompt"
            elif row["image"] and not (self.path / row["image"]).is_file():
                refused[key] = "without their pictures"
            elif row["code"] == code[key.decoder]:
                return True
            else:
                commit = short_commit(row["git_commit"]) + " with changes" * row["git_dirty"]
                refused[key] = f"of other code or weights (commit {commit})"
            return False

        self.read(counts)
        rejected = Counter((k.decoder, why) for k, why in refused.items() if k not in self.rows)
        for (decoder, why), count in rejected.items():
            log.warning(
                "%s: %d rows are %s, so their images are decoded again", decoder, count, why
            )
        failed = {k: row["error"] for k, row in self.rows.items() if row["status"] == "failed"}
        if retry:
            self.rows = {k: row for k, row in self.rows.items() if k not in failed}
        for decoder, count in Counter(k.decoder for k in failed if not retry).items():
            log.warning(
                "%s: %s failed in an earlier run (%s). Nothing of the decoder has changed "
                "since, so they stay failed; retry_failed=true decodes them again",
                decoder,
                plural(count, "image"),
                next(e for k, e in failed.items() if k.decoder == decoder),
            )
        write_study(self.path, {"code": dict(code), **entries})
        if len(self.rows) < len(prompts):  # nobody may take them for those of a finished run
            (self.path / MERGED).unlink(missing_ok=True)
            findings = read_findings(self.path)
            if findings.done:  # verdicts and scores are of the rows of that time
                write_findings(self.path, Findings(findings.machine, findings.work))

    def read(self, counts: Callable[[Row], bool]) -> None:
        """Reads the rows that count, the latest of each key."""
        for path in sorted(self.path.glob("rows/*.jsonl")):
            latest: dict[Key, Row] = {}  # in a file by place: clocks of two machines may differ
            for row in read_rows(path):
                if counts(row):
                    latest[Key.of(row)] = without_lists(row)
            for key, row in latest.items():  # of two files an image that was decoded
                old = self.rows.get(key)
                if old is None or _order(row) >= _order(old):
                    self.rows[key] = row

    def append(self, rows: Sequence[Row]) -> None:
        """Appends the rows of one call that are not there yet. Their pictures (`picture`, a PIL
        image) are written first: a row's picture always exists. Pictures of one decoder, protocol
        and seed share a folder, so that it can be evaluated. Raises FolderError, OSError."""
        self.require_there()
        fresh, lines = {Key.of(row): row for row in rows if Key.of(row) not in self.rows}, ""
        pictures = {key: row.pop("picture", None) for key, row in fresh.items()}
        encoded = encode({key: one for key, one in pictures.items() if one is not None})
        for key, row in fresh.items():
            if key in encoded:
                folder = key.protocol + (f"-{key.seed}" if key.protocol == RESEED else "")
                name = f"{key.protocol}-{key.seed}-{key.prompt_index:05d}.png"
                row["image"] = f"images/{key.decoder}/{folder}/{name}"
                write_bytes(self.path / row["image"], encoded[key], sync=False)
                row["image_hash"] = hashlib.sha256(encoded[key]).hexdigest()[:16]
            lines += json.dumps(row, separators=(",", ":")) + "\n"
        if fresh:
            parts = [rows[0]["decoder"], rows[0]["protocol"], self.shard, "jsonl"]
            append(self.path / "rows" / ".".join(filter(None, parts)), lines.encode())
            self.rows |= {key: without_lists(row) for key, row in fresh.items()}

    def table(self, keys: Sequence[Key]) -> pa.Table:
        """Reads the rows of these keys, in this order. Raises FolderError where one is gone."""
        order, tables, count = dict[Key, int](), list[pa.Table](), 0
        for path in sorted(self.path.glob("rows/*.jsonl")):
            latest = self.rows
            counted = [r for r in read_rows(path) if without_lists(r) == latest.get(Key.of(r))]
            order |= {Key.of(row): count + i for i, row in enumerate(counted)}
            tables.append(pa.Table.from_pylist(counted, schema=SCHEMA))
            count += len(counted)
        if lost := sum(key not in order for key in keys):
            raise FolderError(
                f"{lost} of {len(keys)} rows are gone from {self.path / 'rows'}, where files were "
                "removed while the run went on; run the same command again: it decodes them again"
            )
        return pa.concat_tables(tables).take([order[key] for key in keys]).combine_chunks()

    def merge(self, keys: Sequence[Key]) -> pd.DataFrame:
        """Writes the rows of these keys as records.parquet, and captions.json, {picture: prompt},
        into every folder of pictures; returns the rows."""
        self.require_there()
        table = self.table(keys)
        write_parquet(self.path / MERGED, table)
        captions: dict[Path, dict[str, str]] = defaultdict(dict)
        for row in table.select(["image", "prompt"]).to_pylist():
            if row["image"]:
                picture = self.path / row["image"]
                captions[picture.parent][picture.name] = row["prompt"]
        for folder, by_name in captions.items():
            write_text(folder / CAPTIONS_FILE, json.dumps(by_name, indent=0, ensure_ascii=False))
        return table.to_pandas()


def encode(pictures: Mapping[Key, Any]) -> dict[Key, bytes]:
    """PIL images as the bytes of PNG files, several at once: zlib runs outside of Python's lock."""

    def png(picture: Any) -> bytes:
        file = io.BytesIO()
        picture.save(file, format="PNG")
        return file.getvalue()

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        return dict(zip(pictures, pool.map(png, pictures.values()), strict=True))


def read_folder(path: Path) -> RunFolder:
    """Reads a run's folder without locking it: the rows that count by its study.json, none where
    there is no run."""
    folder, code = RunFolder(path), read_study(path).get("code", {})
    folder.read(lambda row: row["code"] == code.get(row["decoder"]))
    return folder


def read_rows(path: Path) -> Iterator[Row]:
    """Yields the rows of a file. Leaves out damaged ones and a half-written last one: a run decodes
    their images again."""
    broken = 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            row = parse_json(line, str(path), nan=True)
        except ValueError:
            row = None
        if isinstance(row, dict) and row.keys() == set(SCHEMA.names):
            yield row
        else:
            broken += 1
    if broken:
        log.warning("%s: %d damaged rows are left out", path, broken)


def without_lists(row: Row) -> Row:
    """Drops lists, which take most of the memory, and NaN, which equals nothing."""
    return {name: value for name, value in row.items() if name not in LISTS and value == value}


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table whole or not at all, with checksums of its pages. Raises OSError."""
    write_atomically(
        path, lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True)
    )


def require_usable(path: Path) -> None:
    """Raises FolderError where a run's folder would be a file, or one that holds something else."""
    if path.exists() and not path.is_dir():
        raise FolderError(f"{path} is a file, where the folder of a run is expected; name another")
    # It is listed first: a shared file system may deny for a minute a file that was looked for too
    # early. Then it is looked for again: a shard may be beginning the run.
    names = {child.name for child in path.iterdir()} if path.exists() else set()
    others = [name for name in names if name not in BEFORE_A_RUN and not name.startswith(TEMPORARY)]
    if others and STUDY not in names and not (path / STUDY).exists():
        raise FolderError(
            f"{path} is not empty and holds no study.json, so it is no run folder; choose another "
            "run_dir= or empty it"
        )


@contextmanager
def open_folder(path: Path, identity: Mapping[str, Any], shard: str = "") -> Iterator[RunFolder]:
    """Creates or resumes a folder, locked against a second run for as long as it is open. identity:
    config, config_hash and machine; shard: the name of a shard, which shares the folder. Raises
    FolderError where the folder belongs to another schema version, configuration or machine, is no
    run folder, or is in use."""
    require_usable(path)
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    identity = {"schema_version": SCHEMA_VERSION, **identity}
    # Shards share the lock of a run, and each has one of its own.
    message = f"another run is writing to {path}{'' if shard else ', or shards of it are'}; "
    message += "wait for it or choose another run_dir="
    files = [(path / LOCK, fcntl.LOCK_SH if shard else fcntl.LOCK_EX, message)]
    if shard:
        message = f"another process has shard {shard} of {path}; wait for it, or stop it"
        files.append((path / SHARDS / f"{shard}.lock", fcntl.LOCK_EX, message))
    opened: list[IO[str]] = []
    with ExitStack() as locks:
        for name, kind, message in files:
            name.parent.mkdir(exist_ok=True)
            try:
                file = locks.enter_context(name.open("a+"))  # NFS wants both ways
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                opened.append(file)
            except BlockingIOError:
                raise InUseError(message) from None
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                    raise
                raise FolderError(
                    f"the file system of {path} locks no files ({error.strerror}), so two runs "
                    "could write to one folder; choose a run_dir= on another one, or have it "
                    "mounted with locks (Lustre: -o flock)"
                ) from error
        if any(path.glob("rows/*.jsonl")):
            require_same(path, identity)
        else:  # a run that stopped before its first row binds nobody
            write_study(path, identity)
        # A killed run has left half a row, to which others would be appended, and files that it had
        # not yet renamed.
        for rows in path.glob(f"rows/*.{shard}.jsonl" if shard else "rows/*.jsonl"):
            with rows.open("rb+") as half:
                half.truncate(half.read().rfind(b"\n") + 1)
        for stray in () if shard else path.rglob(f"{TEMPORARY}*"):
            stray.unlink()
        folder = RunFolder(path, shard, lock=os.fstat(opened[0].fileno()))
        try:
            yield folder
        except BaseException:
            with suppress(OSError):  # the refusal is what to say
                if folder.is_there and {child.name for child in path.iterdir()} == {STUDY, LOCK}:
                    # It was refused before its first row.
                    for written in (path / STUDY, path / LOCK):
                        written.unlink()
                    if made:
                        path.rmdir()
            raise
