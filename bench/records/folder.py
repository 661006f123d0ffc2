"""The folder of a run: results/runs/<study>/, its guard, its rows and images.

    study.json                                       schema version, configuration and its hash, how
                                                     many rows there will be
    rows/<cell>/<protocol>-<seed>-<prompt>.parquet   one row an image
    images/<cell>/<protocol>/<the same stem>.png     reseeds: one folder per seed;
                                                     at the end each with its captions.json
    records.parquet, summary.csv, report/            made from the rows at the end
    machine.json, roofline.csv, fairness.csv         what the machine can do, beside what was done

Why a guard: rows of two configurations, two schema versions or two machines in one folder would be
averaged as if they were one experiment. Such a folder is refused and left untouched. Rows that
came into a folder by hand, or whose code, weights or prompts have changed since, are decoded again.
Until then their files end in .stale: should all be as it was once more, they count again.
Shards share a folder, each with its own rows; a run has it alone (`_locked`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from bench.data.errors import FolderError, InUseError
from bench.data.files import refuse_links, require_space, write_bytes
from bench.prompts.file import write_captions
from bench.records import rows as records
from bench.records import study

log = logging.getLogger(__name__)
ROW_BYTES, PICTURE_BYTES = 30_000, 100_000  # of an image of 256 codes and 256 pixels, generously
SHARDS = "shards"  # their locks
BEFORE = (".lock", "steps.csv", SHARDS)  # what may lie in a folder before its run
Key = tuple[str, str]  # (cell, stem) of a row
T = TypeVar("T")
STALE = ".stale"  # in place of .parquet, on rows that do not count


@dataclass
class RunFolder:
    """An opened folder. `tables` holds every row so far, keyed by (cell, stem). shared: other
    shards write to it, so that only rows of `keys` may be touched."""

    path: Path
    tables: dict[Key, pa.Table] = field(default_factory=dict)
    shared: bool = False

    def expect(self, rows: int) -> None:
        """Notes in study.json how many rows the run will have, for whoever asks how far it is."""
        self.note("rows", lambda _: rows)

    def note(self, name: str, change: Callable[[Any], T]) -> T:
        """Makes an entry of study.json what `change` makes of it (None: there is none yet), and
        returns it. Shards take turns."""
        with ExitStack() as held:
            if self.shared:
                turn = held.enter_context((self.path / SHARDS / "study.lock").open("a+"))
                fcntl.flock(turn, fcntl.LOCK_EX)
            identity = study.read_identity(self.path)
            made = change(identity.get(name))
            study.write_identity(self.path, identity | {name: made})
        return made

    def row_path(self, cell: str, stem: str) -> Path:
        return self.path / "rows" / cell / f"{stem}.parquet"

    def said(self, key: Key, column: str) -> Any:
        """What a row says; None where it is not recorded."""
        table = self.tables.get(key)
        return None if table is None else table.column(column)[0].as_py()

    def resume(self, keys: Mapping[Key, Mapping[str, Any]], retry_failed: bool) -> None:
        """Takes the rows that count, for a run that makes the others again. Files of rows that do
        not count are put out of sight until then, and so is what was made of other rows than there
        will be. keys: (cell, stem) -> what is expected of the row."""
        for path in self.path.glob(f"rows/*/*{STALE}"):
            if not self.shared or (path.parent.name, path.stem) in keys:
                path.replace(path.with_suffix(".parquet"))  # it may be as it was once more
        for key in self.load(keys):
            self.row_path(*key).replace(self.row_path(*key).with_suffix(STALE))
        self._failed(retry_failed)
        if len(self.tables) < len(keys):
            for name in ("records.parquet", "summary.csv"):
                (self.path / name).unlink(missing_ok=True)

    def load(self, keys: Mapping[Key, Mapping[str, Any]]) -> list[Key]:
        """Reads the rows of `keys` that are there; returns the keys of those that do not count:
        damaged ones, rows of another place and stale ones (`bench.records.study`). Warnings say
        so.
        """
        refused, stale = [], Counter[tuple[str, str]]()
        for key, path in ((key, self.row_path(*key)) for key in keys):
            if not path.exists():
                continue
            table = records.read(path)
            wrong = self._wrong(table, key, keys[key])
            if wrong is None:
                self.tables[key] = table
                continue
            refused.append(key)
            if wrong.foreign:
                log.warning("%s %s: it does not count, and a run decodes it again", path, wrong.why)
            else:
                stale[str(keys[key]["decoder"]), wrong.why] += 1
        for (decoder, why), count in stale.items():
            log.warning("%s: %d recorded rows do not count, %s; a run decodes them again",
                        decoder, count, why)  # fmt: skip
        return refused

    def _wrong(
        self, table: pa.Table | None, key: Key, expected: Mapping[str, Any]
    ) -> study.Changed | None:
        """Why a row does not count, None where it does: whole, the row of its place, made by what
        is there now, with its own picture if it names one."""
        if table is None or table.num_rows != 1:
            return study.Changed(True, "is damaged, or no row of this version")
        row = table.drop_columns([*records.LISTS]).to_pylist()[0]
        if (found := study.changed(row, expected)) is not None or not row["image"]:
            return found
        picture = self.path / records.image_name(*key)
        whole = picture.is_file() and _digest(picture.read_bytes()) == row["image_hash"]
        if row["image"] == records.image_name(*key) and whole:
            return None
        return study.Changed(
            True, f"has lost its picture ({picture} is damaged, another one or gone)"
        )

    def _failed(self, retry: bool) -> None:
        """Failed rows of an earlier run: taken out to be made again, or kept with a warning."""
        failed = [key for key in self.tables if self.said(key, "status") == "failed"]
        errors: dict[str, list[str]] = {}
        for key in failed:
            errors.setdefault(self.said(key, "decoder"), []).append(self.said(key, "error"))
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
            drawn = io.BytesIO()
            image.save(drawn, format="PNG")
            content = drawn.getvalue()
            hashed, place = _digest(content), self.path / records.image_name(cell, stem)
            write_bytes(place, content, sync=False)
        table, path = records.to_table({**row, "image_hash": hashed}), self.row_path(cell, stem)
        records.write(path, table)
        path.with_suffix(STALE).unlink(missing_ok=True)
        self.tables[cell, stem] = table

    def merge(self) -> pa.Table:
        """All rows in one table, ordered by cell as given and stem, also as records.parquet; and
        the captions of every folder of pictures."""
        if not self.tables:
            raise FolderError(f"{self.path} holds no rows; run the study first")
        merged = pa.concat_tables(self.tables.values()).combine_chunks()
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
    return folder, folder.load({key: study.expected_of(*key, *known) for key in row_keys(path)})


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
    shard: the name of a shard, which shares the folder with the others.
    Raises FolderError where the folder belongs to another schema version, configuration or machine,
    is no run folder, or is in use; DiskFullError.
    """
    identity = {
        "schema_version": records.SCHEMA_VERSION,
        "config_hash": config_hash,
        "config": dict(config),
        "machine": dict(machine),
    }
    written = path / "study.json"
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
        study.guard(path, study.read_study(written), identity)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path, shard):
        for stray in () if shard else path.rglob(".tmp-*"):
            stray.unlink()  # what a killed run has left behind
        # A run that stopped before its first row binds nobody; a shard beside this one does.
        beside = study.read_study(written) if shard and written.exists() else {}
        if not begun and any(beside.get(key) != identity[key] for key in study.SAME):
            study.write_identity(path, identity)
        try:
            yield RunFolder(path, shared=bool(shard))
        except BaseException:
            if {found.name for found in path.iterdir()} == {"study.json", ".lock"}:
                shutil.rmtree(path)  # it was refused before its first row
            raise


def _foreign(path: Path) -> bool:
    """Whether a folder holds anything but what may lie there before a run, and is no run's. By the
    listing first: a shared file system may say for a minute that a file is not there which was
    looked for too early. Then by a look: a shard may begin the folder, with study.json, now."""
    names = {found.name for found in path.iterdir()}
    other = any(n not in BEFORE and not n.startswith(".tmp-") for n in names)
    return other and "study.json" not in names and not (path / "study.json").exists()


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


def check_space(path: Path, rows: int, pictures: int) -> None:
    """Raises DiskFullError before work starts where so many more rows, and the pictures of some of
    them, would not fit."""
    what = f"{rows:,} rows and {pictures:,} pictures"
    need = rows * ROW_BYTES + pictures * PICTURE_BYTES
    require_space(path, need, what, "choose another run_dir=")
