"""The folder of a run: results/runs/<study>/, its guard, its rows and images.

    study.json                                       schema version, configuration and its hash, how
                                                     many rows there will be, attention chosen
    rows/<cell>/<protocol>-<seed>-<prompt>.parquet   one row an image; timed again: -<repeat>
    images/<cell>/<protocol>/<the same stem>.png     reseeds: one folder per seed;
                                                     at the end each with its captions.json
    records.parquet, summary.csv, report/            made from the rows at the end
    run.json                                         hashes of them (`bench.records.run_json`)
    machine.json, roofline.csv, fairness.csv         what the machine can do, beside what was done

Why a guard: rows of two configurations, two schema versions or two machines in one folder would be
averaged as if they were one experiment. Such a folder is refused and left untouched. Rows that
came into a folder by hand, or whose code, weights or prompts have changed since, are decoded again.
Until then their files end in .stale: should all be as it was once more, they count again.
Workers share a folder, each with the rows of its shard; a run has it alone (`_locked`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import os
import shutil
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa

from bench.data.errors import DiskFullError, FolderError
from bench.data.files import refuse_links
from bench.prompts.file import write_captions
from bench.records import rows as records
from bench.records.study import (
    SAME,
    Changed,
    changed,
    expected_of,
    guard,
    read_identity,
    read_study,
    write_identity,
)

log = logging.getLogger(__name__)
ROW_BYTES, PICTURE_BYTES = 30_000, 100_000  # of an image of 256 codes and 256 pixels, generously
PATIENCE, LOOK = 10.0, 0.1  # seconds: for a worker that was told to stop; between two looks
SHARDS = "shards"  # of workers: their locks and logs
BEFORE = (".lock", "steps.csv", SHARDS)  # what may lie in a folder before its run
Key = tuple[str, str]  # (cell, stem) of a row
T = TypeVar("T")
STALE = ".stale"  # in place of .parquet, on rows that do not count


@dataclass
class RunFolder:
    """An opened folder. `tables` holds every row so far, keyed by (cell, stem). shared: other
    workers write to it, so that only rows of `keys` may be touched."""

    path: Path
    tables: dict[Key, pa.Table] = field(default_factory=dict)
    shared: bool = False

    def expect(self, rows: int) -> None:
        """Notes in study.json how many rows the run will have, for whoever asks how far it is."""
        self.note("rows", lambda _: rows)

    def note(self, name: str, change: Callable[[Any], T]) -> T:
        """Makes an entry of study.json what `change` makes of it (None: there is none yet), and
        returns it. Workers that share the folder take turns."""
        with ExitStack() as held:
            if self.shared:
                turn = held.enter_context((self.path / SHARDS / "study.lock").open("a+"))
                fcntl.flock(turn, fcntl.LOCK_EX)
            study = read_identity(self.path)
            made = change(study.get(name))
            write_identity(self.path, study | {name: made})
        return made

    def row_path(self, cell: str, stem: str) -> Path:
        return self.path / "rows" / cell / f"{stem}.parquet"

    def image_name(self, cell: str, stem: str) -> str:
        """The picture's path inside the folder, as rows hold it. Pictures of one decoder, protocol
        and seed lie in a folder of their own, so that each folder can be evaluated."""
        protocol, seed = stem.split("-")[:2]
        return f"images/{cell}/{protocol}{f'-{seed}' * (protocol == 'reseed')}/{stem}.png"

    def has(self, cell: str, stem: str) -> bool:
        return (cell, stem) in self.tables

    def keeps_image(self, cell: str, stem: str) -> bool:
        """Whether there is such a row, and a picture of its own."""
        found = self.tables.get((cell, stem))
        return found is not None and bool(found.column("image")[0].as_py())

    def resume(self, keys: Mapping[Key, Mapping[str, Any]], retry_failed: bool) -> None:
        """Takes the rows that count, for a run that makes the others again. Files of rows that do
        not count are put out of sight until then, and so is what was made of other rows than there
        will be. keys: (cell, stem) -> what is expected of the row."""
        own = (self.row_path(*key).with_suffix(STALE) for key in keys)
        stale = filter(Path.exists, own) if self.shared else self.path.glob(f"rows/*/*{STALE}")
        for path in stale:
            path.replace(path.with_suffix(".parquet"))  # it may be as it was once more
        for key in self.load(keys):
            self.row_path(*key).replace(self.row_path(*key).with_suffix(STALE))
        self._failed(retry_failed)
        if len(self.tables) < len(keys):
            for name in ("records.parquet", "summary.csv", "run.json"):
                (self.path / name).unlink(missing_ok=True)

    def load(self, keys: Mapping[Key, Mapping[str, Any]]) -> list[Key]:
        """Reads the rows of `keys` that are there; returns the keys of those that do not count:
        damaged ones, rows of another place and stale ones (`bench.records.study`). Warnings say
        so.
        """
        refused, stale = [], Counter[tuple[str, str]]()
        for key, expected in keys.items():
            path = self.row_path(*key)
            if not path.exists():
                continue
            table = records.read(path)
            wrong = self._wrong(table, key, expected)
            if wrong is None:
                self.tables[key] = table
                continue
            refused.append(key)
            if wrong.foreign:
                log.warning("%s %s: it does not count, and a run decodes it again", path, wrong.why)
            else:
                stale[str(expected["decoder"]), wrong.why] += 1
        for (decoder, why), count in stale.items():
            log.warning("%s: %d recorded rows do not count, %s; a run decodes them again",
                        decoder, count, why)  # fmt: skip
        return refused

    def _wrong(
        self, table: pa.Table | None, key: Key, expected: Mapping[str, Any]
    ) -> Changed | None:
        """Why a row does not count, None where it does: whole, the row of its place, made by what
        is there now, with its own picture if it names one."""
        if table is None or table.num_rows != 1:
            return Changed(True, "is damaged, or no row of this version")
        row = table.drop_columns([*records.LISTS]).to_pylist()[0]
        if (found := changed(row, expected)) is not None or not row["image"]:
            return found
        picture = self.path / self.image_name(*key)
        whole = picture.is_file() and _digest(picture.read_bytes()) == row["image_hash"]
        if row["image"] == self.image_name(*key) and whole:
            return None
        return Changed(True, f"has lost its picture ({picture} is damaged, another one or gone)")

    def _failed(self, retry: bool) -> None:
        """Failed rows of an earlier run: taken out to be made again, or kept with a warning."""
        errors: dict[str, list[str]] = {}
        for key, table in [*self.tables.items()]:
            row = table.select(["decoder", "status", "error"]).to_pylist()[0]
            if row["status"] == "failed":
                errors.setdefault(row["decoder"], []).append(row["error"])
                if retry:
                    del self.tables[key]
        for decoder, found in ({} if retry else errors).items():
            log.warning(
                "%s: %d images failed in an earlier run (%s). Nothing of the decoder has changed "
                "since, so they stay failed; retry_failed=true decodes them again",
                decoder, len(found), found[0],
            )  # fmt: skip

    def add(self, cell: str, stem: str, row: Mapping[str, Any], image: Any = None) -> None:
        """Writes the image (a PIL image, if any), then the row: a row's image always exists.
        Without one the row may name a picture that is there already."""
        hashed = row.get("image_hash", "")
        if image is not None:
            content = io.BytesIO()
            image.save(content, format="PNG")
            hashed = _digest(content.getvalue())
            records.write_atomically(
                self.path / self.image_name(cell, stem),
                lambda file: file.write(content.getvalue()),
                sync=False,
            )
        table, path = records.to_table({**row, "image_hash": hashed}), self.row_path(cell, stem)
        records.write(path, table)
        path.with_suffix(STALE).unlink(missing_ok=True)
        self.tables[cell, stem] = table

    def merge(self) -> pa.Table:
        """All rows in one table, ordered by cell as given and stem, also as records.parquet; and
        the captions of every folder of pictures."""
        if not self.tables:
            raise FolderError(f"{self.path} holds no rows; run the study first")
        merged = pa.concat_tables(self.tables[key] for key in self.tables).combine_chunks()
        write_captions(self.path, merged.select(["image", "prompt"]).to_pylist())
        records.write(self.path / "records.parquet", merged)
        return merged


def row_keys(path: Path) -> list[Key]:
    """(cell, stem) of every row of a folder, as its file says."""
    files = (p for p in path.glob("rows/*/*.parquet") if not p.name.startswith("."))
    return sorted((p.parent.name, p.stem) for p in files)


def recorded(path: Path, identity: Mapping[str, Any]) -> tuple[RunFolder, list[Key]]:
    """A folder with all of its rows that count, where no model is loaded; keys of those that do
    not. identity: study.json."""
    folder, known = RunFolder(path), (identity["config_hash"], identity["machine"])
    return folder, folder.load({key: expected_of(*key, *known) for key in row_keys(path)})


def _digest(content: bytes) -> str:
    """Of a picture, as its row holds it."""
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def open_folder(
    path: Path,
    config: Mapping[str, Any],
    config_hash: str,
    machine: Mapping[str, Any],
    shard: str = "",
) -> Iterator[RunFolder]:
    """The folder, created or resumed, locked against a second run for as long as it is open.

    config: the settings that decide what rows hold; machine: what decides how fast they are;
    shard: the name of a worker's shard, which shares the folder with the other shards.
    Raises FolderError where the folder belongs to another schema version, configuration or machine,
    is no run folder, or is in use; DiskFullError.
    """
    identity = {
        "schema_version": records.SCHEMA_VERSION,
        "config_hash": config_hash,
        "config": dict(config),
        "machine": dict(machine),
    }
    study = path / "study.json"
    if path.exists() and not path.is_dir():
        raise FolderError(f"{path} is a file, where the folder of a run is expected; name another")
    refuse_links(path)
    begun = any(path.glob("rows/*/*.parquet"))
    if path.exists() and _foreign(path):
        raise FolderError(
            f"{path} is not empty and holds no study.json, so it is no run folder; choose another "
            "run_dir= or empty it"
        )
    if begun:
        guard(path, read_study(study), identity)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path, shard):
        if not shard:
            _sweep(path)
        # A run that stopped before its first row binds nobody; a worker beside this one does.
        beside = read_study(study) if shard and study.exists() else {}
        if not begun and any(beside.get(key) != identity[key] for key in SAME):
            write_identity(path, identity)
        with ExitStack() as stack:
            stack.callback(_remove_if_unused, path)
            yield RunFolder(path, shared=bool(shard))
            stack.pop_all()  # what came to its end stays


def _foreign(path: Path) -> bool:
    """Whether a folder holds anything but what may lie there before a run, and is no run's. By the
    listing first: a shared file system may say for a minute that a file is not there which was
    looked for too early. Then by a look: a worker may begin the folder, with study.json, now."""
    names = {found.name for found in path.iterdir()}
    other = any(n not in BEFORE and not n.startswith(".tmp-") for n in names)
    return other and "study.json" not in names and not (path / "study.json").exists()


@contextmanager
def _locked(path: Path, shard: str) -> Iterator[None]:
    """A run locks the folder; workers share that lock, and each locks its own shard. Raises
    FolderError where another process has it."""
    with ExitStack() as held:
        held.enter_context(
            _lock(
                path / ".lock",
                fcntl.LOCK_SH if shard else fcntl.LOCK_EX,
                f"another run is writing to {path}{'' if shard else ', or workers of it are'}; "
                "wait for it or choose another run_dir=",
            )
        )
        if shard:
            own = path / SHARDS / f"{shard}.lock"
            own.parent.mkdir(exist_ok=True)
            taken = f"another worker has shard {shard} of {path}; wait for it, or stop it"
            held.enter_context(_lock(own, fcntl.LOCK_EX, taken, PATIENCE))
        yield


def _flocked(file: IO[str], kind: int) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(file: IO[str] | None) -> None:
    if file is not None:
        file.close()


@contextmanager
def _lock(path: Path, kind: int, taken: str, patience: float = 0.0) -> Iterator[None]:
    """Raises FolderError, with the words `taken` where another process has it for so many seconds
    more."""
    with path.open("a+") as file:  # NFS wants both ways
        lock = weakref.ref(file)  # a plug-in's child process must not keep the lock of a dead run
        os.register_at_fork(after_in_child=lambda: _close(lock()))
        until = time.monotonic() + patience
        try:
            while not _flocked(file, kind):
                if time.monotonic() >= until:
                    raise FolderError(taken)
                time.sleep(LOOK)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            raise FolderError(
                f"the file system of {path} locks no files ({error.strerror}), so two runs could "
                "write to one folder; choose a run_dir= on another one, or have it mounted with "
                "locks (Lustre: -o flock)"
            ) from error
        yield


def _remove_if_unused(path: Path) -> None:
    """Removes a folder whose run was refused before its first row."""
    if {found.name for found in path.iterdir()} == {"study.json", ".lock"}:
        shutil.rmtree(path)


def check_space(path: Path, rows: int, pictures: int) -> None:
    """Raises DiskFullError before work starts where so many more rows, and the pictures of some of
    them, would not fit."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    free, need = shutil.disk_usage(existing).free, rows * ROW_BYTES + pictures * PICTURE_BYTES
    if free < need:
        raise DiskFullError(
            f"{rows:,} rows and {pictures:,} pictures need about {need / 1e6:,.0f} MB in {path}, "
            f"{free / 1e6:,.0f} MB are free; free some space or choose another run_dir="
        )


def _sweep(path: Path) -> None:
    """Removes temporary files that a killed run left behind."""
    for stray in path.rglob(".tmp-*"):
        stray.unlink()
