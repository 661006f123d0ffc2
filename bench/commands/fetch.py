"""`python -m bench fetch study=...`: what a study needs from the hub, downloaded once.

Why: a hundred shards must not ask the hub for the same files, and must all have the same ones. So
one process fetches and notes the revision (a commit of the repository) of each. The others read the
hub's cache alone (HF_HUB_OFFLINE=1). Fetching again keeps the revisions that are noted.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

from bench.config.checkpoints import FILES, from_hub, main_of, on_disk, sources_of
from bench.config.words import divided
from bench.console import say
from bench.data.errors import BenchError, ConfigError
from bench.data.files import write_text
from decoders.documents import read_object
from decoders.errors import DecoderError
from decoders.kinds import fitted

PINS = "revisions.json"
OTHERS = ("*.json", "tokenizer*")  # read together with weights


@dataclass(frozen=True)
class PinSettings:
    """The setting of `cmd_fetch` that no study has."""

    pins: Path | None = None


def cmd_fetch(words: Sequence[str]) -> int:
    """Download what a study needs from the hub, once.
    Notes the revisions, and keeps them when it runs again. With HF_HUB_OFFLINE=1 runs then read the
    hub's cache alone.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME      which study (`list study`; default: main)
      decoders=[a,b]  decoders of the study, or any of conf/decoder
      run_dir=DIR     the run's folder (default: results/runs/<study>)
      pins=FILE       the revisions (default: revisions.json next to run_dir)

    example:
      python -m bench fetch study=lantern_table
    """
    from bench.config.compose import compose_study

    options, rest = divided(PinSettings, words)
    config = compose_study(rest)
    pins = options.pins or Path(config.run_dir).parent / PINS
    sources, revisions = sources_of(config), read_pins(pins)
    hub = [source for source in sources if from_hub(source)]
    for source in hub:
        revisions[source] = fetch(source, revisions.get(source), pins)
        say(f"{source}: revision {revisions[source]}")
        write_text(pins, json.dumps(revisions, indent=1, sort_keys=True) + "\n")
    if hub:
        say(f"revisions: {pins}")
    left = [source for source in sources if source not in hub and not on_disk(source)]
    for source in left:
        say(f"missing: {source}, to be put there by hand")
    if not hub and not left:
        say(f"nothing to fetch: all that {config.name} needs is on this disk")
    return 1 if left else 0


def fetch(source: str, revision: str | None, pins: Path) -> str:
    """Downloads the files of a repository that models read, of a revision or the newest one;
    returns the revision, a commit. Raises BenchError, which says what to do."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    hub = HfApi()
    # The first of its bases is what the hub's client raises where there is no answer at all.
    failed = cast(tuple[type[Exception], ...], (*HfHubHTTPError.__bases__, OSError))
    try:
        found = hub.model_info(source, revision=revision)
        names = [file.rfilename for file in found.siblings or ()]
        names = wanted(names, FILES.get(source, ""))
        snapshot_download(source, revision=revision, allow_patterns=names)
    except failed as error:
        raise BenchError(
            f"{source} could not be fetched from {hub.endpoint}: "
            f"{_advice(error, f'{hub.endpoint}/{source}', revision, pins)}"
        ) from error
    _require_main(source, str(found.sha), pins)
    return str(found.sha)


def _require_main(source: str, revision: str, pins: Path) -> None:
    """Models read the `main` of the hub's cache, which other programs share: one that is there
    stays as it is. Raises BenchError where it is not the revision of a study."""
    from huggingface_hub.constants import HF_HUB_CACHE

    main = main_of(source)
    if not main.is_file():
        write_text(main, revision)
    there = main.read_text().strip()
    if there != revision:
        raise BenchError(
            f"{source}: the hub's cache {HF_HUB_CACHE} has the revision {there} as its `main`, the "
            f"study is of {revision} ({pins}); set HF_HOME to a folder for this study alone, or "
            "remove the line of the repository there to take what the cache has"
        )


def _advice(error: Exception, page: str, revision: str | None, pins: Path) -> str:
    """What happened, and what to do about it."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and with it nothing is downloaded; unset it"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"its owner gives it to those who accept its terms: do so at {page}, log in here with "
            "`hf auth login`, and run this again"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return (
            "there is no such repository, or it is private; look at its name in the settings of "
            "the study, or log in with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"it has no revision {revision}; remove the line of it in {pins} to take the newest "
            "one. Rows that other weights have made do not count then"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"the disk of {constants.HF_HUB_CACHE} is full; free some space, or set HF_HOME to a "
            "folder on another disk"
        )
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"{reason}. What came is kept: run this again later, or where the hub can be reached, with "
        "HF_HOME on a disk that all machines see, and it goes on from there"
    )


def wanted(names: Sequence[str], file: str) -> list[str]:
    """Of a repository's files those that models read: `file`, else safetensors, else .bin; and
    descriptions."""
    weights = [n for n in names if n == file]
    weights = weights or [n for n in names if n.endswith(".safetensors")]
    weights = weights or [n for n in names if n.endswith(".bin")]
    rest = [n for n in names if any(fnmatch(n, pattern) for pattern in OTHERS)]
    return list(dict.fromkeys([*weights, *rest]))


def read_pins(path: Path) -> dict[str, str]:
    """Repository -> revision. {} where there is no such file. Raises ConfigError."""
    if not path.is_file():
        return {}
    try:
        found: dict[str, str] = fitted(str(path), read_object(path), dict[str, str])
    except DecoderError as error:
        raise ConfigError(
            f"{error}; it maps repositories to the revisions that were fetched: remove it to fetch "
            "anew"
        ) from error
    return found
