"""`launch=NAME launch.workers=8 shard=0/4` on the command line of a run: who decodes, not what.

These words are no part of a study's configuration: its hash, and so its rows, do not depend on
them. A name is an option of conf/launch, or of a folder in hydra.searchpath.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.config.compose import require_folders
from bench.config.hydra_edge import compose_config, hydra_session, parse_override, plain
from bench.config.schema import build
from bench.config.words import split
from bench.errors import ConfigError, unknown
from decoders.kinds import Amount, Count, NotNegative, Positive, require

PLACES = ("local", "slurm", "ray")
USED = {  # besides workers, shards, retries, threads
    "local": (),
    "slurm": ("cpus", "gpus", "hours", "cluster", "options"),
    "ray": ("cpus", "gpus", "address"),
}
CLUSTERS = ("slurm", "local")


@dataclass(frozen=True)
class LaunchConfig:
    """See conf/launch."""

    name: str
    where: str
    workers: Count = 2
    shards: Count | None = None
    retries: Amount = 3
    threads: Count | None = None
    cpus: Count = 1
    gpus: NotNegative = 0.0
    hours: Positive = 4.0
    cluster: str = "slurm"
    options: dict[str, Any] = field(default_factory=dict)
    address: str | None = None

    def __post_init__(self) -> None:
        require(self, "launch.", ConfigError)
        if self.where not in PLACES:
            raise ConfigError(unknown("launch.where", self.where, PLACES))
        if self.cluster not in CLUSTERS:
            raise ConfigError(unknown("launch.cluster", self.cluster, CLUSTERS))
        if self.where == "slurm" and self.gpus != int(self.gpus):
            raise ConfigError(f"launch.gpus must be a whole number on SLURM, found {self.gpus:g}")

    @property
    def count(self) -> int:
        """How many shards."""
        return self.shards or self.workers

    def threads_of(self, threads: int) -> int:
        """Of a worker, where the study has so many."""
        if self.threads:
            return self.threads
        most = threads // self.workers if self.where == "local" else self.cpus
        return max(1, min(threads, most))


@dataclass(frozen=True)
class Asked:
    """launch: None where the words name none; shard: "i/n" or ""; words: all the others."""

    launch: LaunchConfig | None
    shard: str
    words: list[str]


def is_asked(words: Sequence[str]) -> bool:
    """Whether a command line has any of these words."""
    return any(split(word).group in ("launch", "shard") for word in words)


def asked(words: Sequence[str]) -> Asked:
    """The command line, sorted. Raises ConfigError."""
    mine: list[str] = []
    rest: list[str] = []
    places: list[str] = []
    shard = ""
    for word in words:
        told = split(word)
        if told.group == "shard":
            if told.key != "shard" or not told.value:
                raise ConfigError(f"expected shard=i/n, found {word!r}")
            shard = told.value
        elif told.group == "launch":
            mine.append(str(parse_override(word).input_line))
        else:
            rest.append(word)
            places += [word] if told.key == "hydra.searchpath" else []
    named = any(split(word).key == "launch" for word in mine)
    _check(mine, shard, named)
    launch = _composed([*mine, *places]) if named else None
    if shard and mine:
        raise ConfigError("shard= is one worker, and launch= starts them: give one of the two")
    return Asked(launch, shard, rest)


def _check(mine: Sequence[str], shard: str, named: bool) -> None:
    if mine and not named:
        raise ConfigError(
            f"{mine[0]!r} is a setting of a launch; name it too: launch=local, slurm or ray"
        )


def _composed(words: Sequence[str]) -> LaunchConfig:
    for word in words:
        if split(word).key == "hydra.searchpath":
            require_folders(parse_override(word).value())
    with hydra_session("conf"):
        root = plain(compose_config("launch_config", [*words]))
    values = root.get("launch")
    if not isinstance(values, dict):
        raise ConfigError(f"launch must be a group of settings, found {values!r}")
    made = build(LaunchConfig, values, "launch")
    known = {"name", "where", "workers", "shards", "retries", "threads", *USED[made.where]}
    for key in values:
        if key not in known:
            raise ConfigError(unknown(f"setting of a launch on {made.where}", key, known))
    return made
