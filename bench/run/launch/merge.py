"""`python -m bench merge DIR... out=DIR`: shards that were run by hand, in one run folder.

A row is taken as it is: its file, its picture. What must agree does: the configuration, the schema,
the kind of machine, the commit; and where two folders have the same image, its codes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config.differences import MACHINES, differences
from bench.config.words import with_folders
from bench.console import say
from bench.data.errors import ConfigError, FolderError
from bench.data.files import refuse_links, write_bytes
from bench.judge.quality import FEATURES
from bench.records.folder import Key, RunFolder, open_folder, recorded, row_keys
from bench.records.rows import image_name
from bench.records.study import read_identity, require_schema
from bench.run.session import ATTENTION, agreed
from decoders.kernels.selected import purpose

AGREE = (  # keys of study.json: compared, shown, what it means where they differ, the two sides
    ("config_hash", "config", "hold two configurations", ("in the first", "in the second")),
    ("machine", "machine", "were made on different kinds of machines", MACHINES),
)
NOTHING = "Nothing was merged; name the shards of one run, and an out= that is empty or that run's"
log = logging.getLogger(__name__)
SHOWN = ["decoder", "protocol", "seed", "prompt_index", "repeat", "status", "git_commit", "codes"]


@dataclass(frozen=True)
class Source:
    """A run folder to merge: study.json, and (cell, stem) -> what is compared of each row."""

    path: Path
    identity: Mapping[str, Any]
    rows: Mapping[Key, Mapping[str, Any]]


def cmd_merge(words: Sequence[str]) -> int:
    """Run folders of shards that were run by hand, in one.
    Refuses folders of different configurations, commits or kinds of machines, and images that
    two folders have with different codes. Exit status 1 while rows are missing.
    Usage: DIR DIR [DIR ...] out=DIR
    Settings:
        out=DIR  where they go: a new folder, or one of theirs
    Example: merge results/runs/half_0 results/runs/half_1 out=results/runs/whole

    1 where rows are still missing.
    """
    folders, settings = with_folders(words, ("out",), "merge")
    out = settings.get("out")
    if len(folders) < 2 or out is None:
        raise ConfigError(
            "merge takes two or more run folders and where they go: "
            "python -m bench merge DIR DIR... out=DIR"
        )
    twice = [folder for folder in folders if folders.count(folder) > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice; merge takes every folder once")
    have, total = merge([read(folder) for folder in folders], Path(out))
    missing = (total or have) - have
    say(f"{out}: {have:,} rows" + (f" of {total:,}" if total is not None else ""))
    if missing:
        say(
            f"{missing:,} rows are missing, so there is no FID yet (N is not the study's): run "
            f"their shards with run_dir={out}, or all that is left with `python -m bench run`"
        )
    say(f"table, FID and page: python -m bench run, the words of the study and run_dir={out}")
    return 1 if missing else 0


def read(path: Path) -> Source:
    """A folder, every row whole and of this folder's study, without links: what they point to is
    not the run's. Raises FolderError."""
    refuse_links(path)
    identity = read_identity(path)
    require_schema(path, identity)
    folder, refused = recorded(path, identity)
    if refused:
        raise FolderError(
            f"{path} has {len(refused)} rows that do not count ({folder.row_path(*refused[0])} "
            "is the first, see the warnings); run its shard again, or remove them. Nothing was "
            "merged"
        )
    if not folder.tables:
        raise FolderError(f"{path} holds no rows; nothing was merged")
    rows = {key: t.select(SHOWN).to_pylist()[0] for key, t in folder.tables.items()}
    return Source(path, identity, rows)


def merge(sources: Sequence[Source], out: Path) -> tuple[int, int | None]:
    """Copies all rows with their pictures and kept features; returns how many rows there are, and
    how many there should be (None: no run came to know). Raises FolderError, and then has written
    nothing."""
    into = [read(out)] if row_keys(out) else []
    others = [source for source in sources if source.path.resolve() != out.resolve()]
    every = [*into, *others]
    chosen = choose(every)
    first = every[0].identity
    with open_folder(out, first["config"], first["config_hash"], first["machine"]) as folder:
        for (cell, stem), source in chosen.items():
            # A picture before its row, each whole or absent.
            for name in (image_name(cell, stem), f"rows/{cell}/{stem}.parquet"):
                if source in others and (source.path / name).is_file():
                    write_bytes(out / name, (source.path / name).read_bytes())
        for source in others:
            if (source.path / FEATURES).is_dir():
                shutil.copytree(source.path / FEATURES, out / FEATURES, dirs_exist_ok=True)
        for name in ("records.parquet", "summary.csv"):  # of fewer rows
            (out / name).unlink(missing_ok=True)
        for source in every:
            for record in source.identity.get(ATTENTION, []):
                keep(folder, record, source.path)
        totals = [source.identity["rows"] for source in every if source.identity.get("rows")]
        if totals:
            folder.expect(max(totals))
    return len(chosen), max(totals, default=None)


def keep(folder: RunFolder, record: dict[str, Any], source: Path) -> None:
    """Notes the attention of a source, for what is still to be decoded; the first source's counts
    where two chose differently."""
    kept = agreed(folder, record)
    if kept["name"] != record["name"]:
        log.warning(
            "%s decoded with attention=%s where others did with %s (%s): in half precision, codes "
            "may differ by rounding; set backend.attention for shards that are run by hand",
            source, record["name"], kept["name"], purpose(record["shape"]),
        )  # fmt: skip


def choose(sources: Sequence[Source]) -> dict[Key, Source]:
    """Whose row is taken: the first that came out. Raises FolderError where folders are no parts of
    one run."""
    first = sources[0]
    for other in sources[1:]:
        for name, compared, says, sides in AGREE:
            if other.identity[name] != first.identity[name]:
                shown = differences(first.identity[compared], other.identity[compared], sides)
                raise FolderError(f"{first.path} and {other.path} {says}: {shown}. {NOTHING}")
    seen = {row["git_commit"]: source.path for source in sources for row in source.rows.values()}
    if len(seen) > 1:
        (one, here), (two, there), *_ = seen.items()
        raise FolderError(
            f"rows of two commits: {one[:12]} in {here}, {two[:12]} in {there}; run the shards "
            "again with one of the two. Nothing was merged"
        )
    chosen: dict[Key, Source] = {}
    for source in sources:
        for key, row in source.rows.items():
            have = chosen.get(key)
            if have is None or have.rows[key]["status"] == "failed":
                chosen[key] = source
            elif row["status"] != "failed" and row["codes"] != have.rows[key]["codes"]:
                raise FolderError(
                    f"{have.path} and {source.path} disagree on {row['decoder']}, "
                    f"{row['protocol']}, seed {row['seed']}, image {row['prompt_index']}: the same "
                    "noise gave other codes. Nothing was merged; find out which of the two is "
                    "right, or leave one folder out"
                )
    return chosen
