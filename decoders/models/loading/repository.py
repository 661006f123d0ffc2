"""Where the files of a model are: a file, a folder or a repository of the hub, found in one way.

Each reader names the files that it can use, best first. Of a repository that file, its shards and
the files that describe a model are fetched, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import cast

from decoders.errors import DecoderError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
INDEX = ".index.json"
WEIGHTS = (
    "model.safetensors", f"model.safetensors{INDEX}",
    "pytorch_model.bin", f"pytorch_model.bin{INDEX}",
)  # fmt: skip
DESCRIBING = re.compile(r".*\.json|tokenizer[^/]*|spiece\.model")  # read together with weights


def needed_files(names: Collection[str], files: Sequence[str] = WEIGHTS) -> list[str]:
    """The names of a repository's files that are read: the first of `files` that it has, of an
    index its numbered shards too, and what describes the model; [] where it has none."""
    chosen = next((file for file in files if file in names), None)
    if chosen is None:
        return []
    weights = re.escape(chosen)
    if chosen.endswith(INDEX):
        weights = rf"[^/]+-\d+-of-\d+{re.escape(Path(chosen.removesuffix(INDEX)).suffix)}"
    return [n for n in names if re.fullmatch(weights, n) or DESCRIBING.fullmatch(n)]


def find(folder: Path, files: Sequence[str] = WEIGHTS) -> Path | None:
    """The first of `files` that a folder has; a broken link counts, and reading it is an error."""
    candidates = (folder / file for file in files)
    return next((where for where in candidates if where.is_symlink() or where.exists()), None)


def locate(source: str, files: Sequence[str] = WEIGHTS, what: str = "weights") -> Path:
    """A local path as it is; a hub id as the folder of its snapshot, fetched with progress, resumed
    if interrupted. what: how messages call it. Raises DecoderError."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not HUB_ID.fullmatch(source):
        raise DecoderError(
            f"no {what} at {source!r}: expected a file, a folder with {' or '.join(files)}, or a "
            "hub id such as owner/name"
        )
    from huggingface_hub import HfApi, snapshot_download

    try:
        try:
            names = [file.rfilename for file in HfApi().model_info(source).siblings or ()]
        except failures():  # offline; where that is not all, the next call says why
            return Path(snapshot_download(source, allow_patterns=[]))
        wanted = needed_files(names, files)
        if wanted:
            return Path(snapshot_download(source, allow_patterns=wanted))
    except failures() as error:  # not found, no access, offline and not in the cache, disk full
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DecoderError(
            f"{what}: {source} is neither a local path nor could it be fetched ({reason}). On a "
            f"machine with access download {' or '.join(files)} and *.json of {source} into a "
            "folder, copy it here and name the folder instead of the hub id"
        ) from error
    raise DecoderError(none_of(source, names, files, what))


def none_of(where: object, names: Iterable[str], files: Sequence[str], what: str) -> str:
    """The message about a folder or repository without any of the files."""
    there = ", ".join(sorted(names)[:4])
    return f"no {what} in {where}: expected {' or '.join(files)}, found {there or 'nothing'}"


def failures() -> tuple[type[Exception], ...]:
    """What the hub's client raises: for an answer that is an error, and where there is none."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast(tuple[type[Exception], ...], (*HfHubHTTPError.__bases__, OSError))
