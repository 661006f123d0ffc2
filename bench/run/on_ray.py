"""`bench run ... ray.shards=16`: the shards of a run as tasks of Ray Core, on a cluster that is
running (`ray.address=auto`) or on this machine.

Ray starts a task again whose process died, and the shard resumes. What a task runs is what a user
can run by hand: `bench run ... shard=i/n`.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.console import complain, progress
from bench.data.errors import ConfigError
from bench.run.shards import require_images
from decoders.kinds import Count, NotNegative, require

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig

PROGRAM = "bench.__main__"  # by its name, since it stands above this layer


@dataclass(frozen=True)
class RaySettings:
    """`ray.*`. A task has as many CPUs as the study's backend.threads."""

    shards: Count  # N parts of the quality images, each a task of Ray
    gpus: NotNegative = 0.0  # GPUs of each task
    address: str | None = None  # auto or ray://HOST:PORT of a cluster (default: on this machine)

    def __post_init__(self) -> None:
        require(self, "ray.", ConfigError)


def run_on_ray(config: StudyConfig, settings: RaySettings, words: Sequence[str]) -> int:
    """Runs a study in shards; returns 1 where some decoder failed, or a shard has not ended. words:
    of the study. Raises ConfigError."""
    from bench.run.finish import interruptible, progress_of

    require_images(config)
    lost, status = list[str](), 0
    with interruptible(config, words), _connected(settings) as ray:
        # max_calls: a process for each task, so that none finds what another has left.
        task = ray.remote(
            num_cpus=config.backend.threads, num_gpus=settings.gpus, max_calls=1
        )(run_words)  # fmt: skip
        shards = [f"shard={i}/{settings.shards}" for i in range(settings.shards)]
        begun = {s: task.remote([*words, s], str(Path.cwd())) for s in shards}
        with progress(len(begun), "shards", unit="shard") as bar:
            for shard, running in begun.items():
                try:
                    found = ray.get(running)
                    why = f"exit status {found}, see its output" if found > 1 else ""
                    status = max(status, min(found, 1))
                except ray.exceptions.RayError as error:
                    why = str(error)
                lost += [f"{shard} has not ended: {why}"] if why else []
                bar.update()
    for one in lost:
        complain(one)
    if lost:
        complain(f"no table yet: {progress_of(config)} are there; the same command resumes")
    return 1 if lost else status


def run_words(words: Sequence[str], folder: str) -> int:
    """A run in a process of Ray, in the folder of the one that started it."""
    os.chdir(folder)
    return int(importlib.import_module(PROGRAM).main(["run", *words]))


@contextmanager
def _connected(settings: RaySettings) -> Iterator[Any]:
    """Ray, connected to the cluster. Raises ConfigError."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("ray.shards= needs Ray: pip install 'lantern-bench[ray]'") from error
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(settings.address or "local", logging_level=logging.WARNING)
        signal.signal(signal.SIGTERM, terminated)  # Ray's handler would end this without a word
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at ray.address={settings.address}: {error}; start one with `ray start "
            "--head`, or leave the address out for one on this machine"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
