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
from pathlib import Path

from bench.config.checkpoints import (
    BY_HAND,
    files_of,
    main_of,
    metric_weights,
    on_disk,
    sources_of,
)
from bench.config.words import divided
from bench.console import say
from bench.data.errors import BenchError, ConfigError
from bench.data.files import write_text
from decoders.documents import read_object
from decoders.errors import DecoderError
from decoders.kinds import fitted

PINS = "revisions.json"


@dataclass(frozen=True)
class PinSettings:
    """The setting of `cmd_fetch` that no study has."""

    pins: Path | None = None


def cmd_fetch(words: Sequence[str]) -> int:
    """Download what a study needs, once: models from the hub, and the metrics' networks.
    All names are looked up before the first download. Notes the revisions, and keeps them when it
    runs again. With HF_HUB_OFFLINE=1 runs then read the hub's cache alone.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME      which study (`list study`; default: main)
      decoders=[a,b]  decoders of the study, or any of conf/decoder
      run_dir=DIR     the run's folder (default: results/runs/<study>)
      pins=FILE       the revisions (default: revisions.json next to run_dir)

    example:
      python -m bench fetch study=lantern_table
    """
    from bench.config.compose import compose_study
    from decoders.models.repository import HUB_ID
    from metrics.official.checkpoint import download

    options, rest = divided(PinSettings, words)
    config = compose_study(rest)
    pins = options.pins or Path(config.run_dir).parent / PINS
    revisions = read_pins(pins)
    away = {source: of for source, of in sources_of(config).items() if not on_disk(source)}
    hub = [source for source, of in away.items() if of not in BY_HAND and HUB_ID.fullmatch(source)]
    repositories = [
        look_up(name, away[name], files_of(away[name], config.model), revisions.get(name), pins)
        for name in hub
    ]
    for one in repositories:
        say(f"{one.name}: {len(one.files)} files, {one.size / 1e9:.1f} GB")
    left = {source: setting for source, setting in away.items() if source not in hub}
    for source, setting in left.items():
        say(f"missing: {source} ({setting}), to be put there by hand")
    for one in repositories:
        fetch(one, pins)
        revisions[one.name] = one.revision
        write_text(pins, json.dumps(revisions, indent=1, sort_keys=True) + "\n")
    if repositories:
        say(f"revisions: {pins}")
    for path in download(*metric_weights(config)):
        say(f"downloaded: {path}")
    if not away:
        say(f"all that {config.name} needs is on this disk")
    return 1 if left else 0


@dataclass(frozen=True)
class Repository:
    """What is read of a repository of the hub. revision: a commit; size: bytes of its files."""

    name: str
    revision: str
    files: list[str]
    size: int


def look_up(
    source: str, setting: str, files: Sequence[str], revision: str | None, pins: Path
) -> Repository:
    """What is read of a repository, of a revision or the newest one; files: one of them must be
    there. Raises BenchError where it cannot be had, or has nothing that is read."""
    from huggingface_hub import HfApi

    from decoders.models.repository import failures, needed, none_of

    hub = HfApi()
    try:
        found = hub.model_info(source, revision=revision, files_metadata=True)
    except failures() as error:
        raise _unavailable(source, error, revision, pins) from error
    sizes = {file.rfilename: file.size or 0 for file in found.siblings or ()}
    names = needed(sizes, files)
    if not names:
        raise BenchError(none_of(source, sizes, files, setting))
    return Repository(source, str(found.sha), names, sum(sizes[name] for name in names))


def fetch(one: Repository, pins: Path) -> None:
    """Downloads what is read of a repository. Raises BenchError, which says what to do."""
    from huggingface_hub import snapshot_download

    from decoders.models.repository import failures

    try:
        snapshot_download(one.name, revision=one.revision, allow_patterns=one.files)
    except failures() as error:
        raise _unavailable(one.name, error, one.revision, pins) from error
    _require_main(one.name, one.revision, pins)


def _unavailable(source: str, error: Exception, revision: str | None, pins: Path) -> BenchError:
    from huggingface_hub.constants import ENDPOINT

    advice = _advice(error, f"{ENDPOINT}/{source}", revision, pins)
    return BenchError(f"{source} could not be fetched from {ENDPOINT}: {advice}")


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
