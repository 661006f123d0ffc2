"""`launch=NAME launch.workers=8 shard=0/4` on the command line of a run, and what a worker runs.

The settings say who decodes, not what: they are no part of a study's configuration, so its hash,
and with it its rows, do not depend on them. A name is an option of conf/launch, or of a folder in
hydra.searchpath. A worker runs one shard of a run, or the end of it, by the words of its command
line: what it does is what a user can do by hand, `python -m bench run ... shard=0/4`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.config.hydra_edge import of_group
from bench.config.schema import build
from bench.config.words import split
from bench.data.errors import INTERRUPTED, ConfigError, unknown
from bench.data.guard import noting_stops
from decoders.kinds import Amount, Count, NotNegative, Positive, require

USED = {  # besides workers, shards, retries, threads
    "local": (),
    "slurm": ("cpus", "gpus", "hours", "cluster", "options"),
    "ray": ("cpus", "gpus", "address"),
}
PROGRAM = "bench.__main__"  # by its name, since it stands above this layer
STOPS = (signal.SIGTERM, signal.SIGUSR2)  # Ray's; submitit's, for preemption and time-out
THREADS = "LANTERN_BENCH_WORKER_THREADS"  # of a worker, where its launcher divides them


@dataclass(frozen=True)
class LaunchConfig:
    """See conf/launch."""

    name: str
    where: Literal["local", "slurm", "ray"]
    workers: Count = 2
    shards: Count | None = None
    retries: Amount = 3
    threads: Count | None = None
    cpus: Count = 1
    gpus: NotNegative = 0.0
    hours: Positive = 4.0
    cluster: Literal["slurm", "local"] = "slurm"
    options: dict[str, Any] = field(default_factory=dict)
    address: str | None = None

    def __post_init__(self) -> None:
        require(self, "launch.", ConfigError)
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
    wrong = "setting of a launch; name it too: launch=local, slurm or ray"
    root, rest = of_group("launch_config", words, "launch", wrong)
    shards, shard = [word for word in map(split, rest) if word.group == "shard"], ""
    for word in shards:
        if word.key != "shard" or not word.value:
            raise ConfigError(f"expected shard=i/n, found {word.text!r}")
        shard = word.value
    if root and shard:
        raise ConfigError("shard= is one worker, and launch= starts them: give one of the two")
    rest = [word for word in rest if split(word).group != "shard"]
    return Asked(_launch(root["launch"]) if root else None, shard, rest)


def _launch(values: Any) -> LaunchConfig:
    made = build(LaunchConfig, values, "launch")
    known = {"name", "where", "workers", "shards", "retries", "threads", *USED[made.where]}
    for key in values:
        if key not in known:
            raise ConfigError(unknown(f"setting of a launch on {made.where}", key, known))
    return made


@dataclass(frozen=True)
class Task:
    """words: of the run; shard: "i/n", or "" for the run itself; threads: of the worker (0: the
    study's); offline: models come from the hub's cache, which `bench fetch` has filled.

    A process that unpickles it works where the launcher does: cwd, path (of Python).
    """

    words: tuple[str, ...]
    shard: str = ""
    threads: int = 0
    offline: bool = False
    cwd: str = field(default_factory=lambda: str(Path.cwd()))
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))

    @property
    def name(self) -> str:
        """Of its log."""
        return self.shard.replace("/", "-of-") or "run"

    def arguments(self) -> list[str]:
        """Behind `python -m bench`."""
        return ["run", *self.words, *([f"shard={self.shard}"] if self.shard else [])]

    def environment(self) -> dict[str, str]:
        """What is set for the worker."""
        found = {"PYTHONPATH": os.pathsep.join(p or self.cwd for p in self.path)}
        if self.threads:
            found[THREADS] = str(self.threads)
        if self.offline:
            found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        return found

    def ended(self, status: int) -> bool:
        """Whether a worker with this exit status came to its end. A run may, with decoders that
        failed (1); a shard with failed rows is 0, and 1 is Python's word for a crash."""
        return status == 0 or (status == 1 and not self.shard)

    def __call__(self) -> int:
        """Runs it in this process, which finds modules where the launcher does; returns its exit
        status. Where a signal stops it, it has none, and leaves as the signal's handler does:
        whoever waits for it starts it again."""
        program = importlib.import_module(PROGRAM)
        os.chdir(self.cwd)
        os.environ.update(self.environment())
        sys.path[:] = dict.fromkeys((*self.path, *sys.path))  # in the launcher's order
        # Schedulers' handlers of signals end a process by an exception. Raised inside a decoder it
        # would be taken for the decoder's.
        with noting_stops(STOPS, KeyboardInterrupt) as stops:
            status = program.main(self.arguments())
        if status == INTERRUPTED:
            raise stops[0] if stops else SystemExit(INTERRUPTED)
        return status

    def checkpoint(self, *_: Any) -> Any:
        """For submitit, where a job is preempted or runs out of time: the same once more, which
        resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(frozen=True)
class Lost:
    """A task that no worker came to the end of."""

    task: Task
    why: str


def tasks_of(words: Sequence[str], count: int, threads: int, offline: bool) -> list[Task]:
    """One for each shard."""
    return [Task(tuple(words), f"{i}/{count}", threads, offline) for i in range(count)]
