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


def first(names: Collection[str], files: Sequence[str] = WEIGHTS) -> str | None:
    """The first of `files` that is among these names; None where none is."""
    return next((file for file in files if file in names), None)


def shards(file: str, names: Iterable[str]) -> list[str]:
    """The numbered shards of an index among these names; for another file, the file itself."""
    if not file.endswith(INDEX):
        return [file]
    ending = re.escape(Path(file.removesuffix(INDEX)).suffix)
    return [name for name in names if re.fullmatch(rf"[^/]+-\d+-of-\d+{ending}", name)]


def needed(names: Collection[str], files: Sequence[str] = WEIGHTS) -> list[str]:
    """The names of a repository's files that are read; [] where it has none of `files`."""
    chosen = first(names, files)
    if chosen is None:
        return []
    weights = shards(chosen, names)
    return [name for name in names if name in weights or DESCRIBING.fullmatch(name)]


def find(folder: Path, files: Sequence[str] = WEIGHTS) -> Path | None:
    """The file of a folder that `first` chooses."""
    nested = [file for file in files if (folder / file).is_file()]
    chosen = first({*nested, *(path.name for path in folder.iterdir())}, files)
    return None if chosen is None else folder / chosen


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
        wanted = needed(names, files)
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


def none_of(place: object, names: Iterable[str], files: Sequence[str], what: str) -> str:
    """The message about a folder or repository without any of the files."""
    there = ", ".join(sorted(names)[:4])
    return f"no {what} in {place}: expected {' or '.join(files)}, found {there or 'nothing'}"


def failures() -> tuple[type[Exception], ...]:
    """What the hub's client raises: for an answer that is an error, and where there is none."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast(tuple[type[Exception], ...], (*HfHubHTTPError.__bases__, OSError))
