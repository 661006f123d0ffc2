"""Parts of a run's quality images: `shard=i/n` in this process, `ray.shards=n` as tasks of Ray.

A shard is every image whose index is i modulo n. An image is a function of (seed, prompt), whatever
process decodes it, and with which other images. All shards write into the run's folder, and any
scheduler can start them. The one that ends last finishes the run: verdicts, table, FID, page.
Shards time nothing, as they may share a machine. Ray starts a task again whose process died, and
the shard resumes.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.config.schema import StudyConfig
from bench.console import complain, progress, say
from bench.errors import ConfigError
from bench.run.schedule import quality_jobs
from bench.run.study import decode_jobs, explain_interrupts, open_study
from bench.store.run_folder import read_folder
from decoders.kinds import Count, NotNegative

PROGRAM = "bench.__main__"  # by its name, since it stands above this layer


class Shard(NamedTuple):
    i: int
    n: int

    def __str__(self) -> str:
        return f"{self.i}/{self.n}"


@dataclass(frozen=True)
class RaySettings:
    """`ray.*`. A task has as many CPUs as the study's backend.threads."""

    shards: Count  # N parts of the quality images, each a task of Ray
    gpus: NotNegative = 0.0  # GPUs of each task
    address: str | None = None  # auto or ray://HOST:PORT of a cluster (default: on this machine)


@dataclass(frozen=True)
class RunSettings:
    """The settings of `cmd_run` that no study has. dry: keep nothing, say what the run needs; shard
    or ray: a part of a run, or all of them."""

    dry: bool = False
    shard: str | None = None
    ray: RaySettings | None = None

    @property
    def part(self) -> Shard | RaySettings | None:
        """What is to be run, None: all, in this process. Raises ConfigError."""
        if self.shard is None:
            return self.ray
        if self.ray is not None:
            raise ConfigError(
                "shard= is one part, ray.shards= starts them all: give one of the two"
            )
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", self.shard)
        if match is None or int(match[1]) >= int(match[2]):
            raise ConfigError(
                f"shard must be i/n with 0 <= i < n, found {self.shard!r}; the four quarters of a "
                "run are 0/4, 1/4, 2/4 and 3/4"
            )
        return Shard(int(match[1]), int(match[2]))


def run_shard(config: StudyConfig, shard: Shard) -> bool:
    """Decodes (or resumes) a shard, and says how many of its images failed, which have rows too.
    Returns whether all of the run is there. Raises as `open_study` does, ConfigError where the
    study has no quality images."""
    require_images(config)
    with explain_interrupts(config), open_study(config, f"{shard.i}-of-{shard.n}") as study:
        jobs = quality_jobs(config, study.contenders, shard)
        decode_jobs(study, [jobs], f"{config.name} {shard}")
        failed = sum(r["status"] == "failed" for r in study.folder.rows.values())
    folder = read_folder(Path(config.run_dir))
    where = f"in {folder.path}: {folder.progress}"
    say(f"shard {shard} is done, {failed} of its images failed; {where}")
    if config.latency.prompts:
        say("timed images are decoded by `run` without shard=, on a machine that does nothing else")
    return not config.latency.prompts and len(folder.rows) == folder.total


def require_images(config: StudyConfig) -> None:
    """Raises ConfigError where shards would have nothing to do."""
    if not config.quality.images:
        raise ConfigError(
            f"the study {config.name} has timed images alone (quality.images=0), and shards time "
            "nothing: what else runs on a shared machine would be in every time. Run it without "
            "shard= and ray.shards=, on a machine that does nothing else"
        )


def run_on_ray(config: StudyConfig, settings: RaySettings, arguments: Sequence[str]) -> int:
    """Runs a study in shards; returns 1 where some decoder failed, or a shard has not ended.
    arguments: of the study. Raises ConfigError."""
    require_images(config)
    unended, status = list[str](), 0
    with explain_interrupts(config), _connect(settings) as ray:
        require_machine(ray.nodes(), config.backend.threads, settings.gpus)
        # max_calls: a process for each task, so that none finds what another has left.
        alone = ray.remote(num_cpus=config.backend.threads, num_gpus=settings.gpus, max_calls=1)
        task = alone(run_arguments)
        shards = [f"shard={i}/{settings.shards}" for i in range(settings.shards)]
        begun = {s: task.remote([*arguments, s], str(Path.cwd())) for s in shards}
        with progress(len(begun), "shards", unit="shard") as bar:
            for shard, running in begun.items():
                try:
                    code = ray.get(running)
                    why = f"exit status {code}, see its output" if code > 1 else ""
                    status = max(status, min(code, 1))
                except ray.exceptions.RayError as error:
                    why = str(error)
                unended += [f"{shard} has not ended: {why}"] if why else []
                bar.update()
    for one in unended:
        complain(one)
    if unended:
        recorded = read_folder(Path(config.run_dir)).progress
        complain(f"no table yet: {recorded} are there; the same command resumes")
    return 1 if unended else status


def require_machine(nodes: Sequence[Mapping[str, Any]], threads: int, gpus: float) -> None:
    """Raises ConfigError where no machine of a cluster, as `ray.nodes` lists them, has what a task
    needs: Ray would wait for one for ever."""
    parts = [node["Resources"] for node in nodes if node["Alive"]]
    have = [(part.get("CPU", 0.0), part.get("GPU", 0.0)) for part in parts]
    if not any(cpus >= threads and cards >= gpus for cpus, cards in have):
        listed = "; ".join(f"{cpus:g} CPUs and {cards:g} GPUs" for cpus, cards in have)
        raise ConfigError(
            f"a task needs {threads} CPUs (backend.threads) and {gpus:g} GPUs (ray.gpus), which no "
            f"machine of the cluster has: {listed or 'it has none'}. Set less, or add a machine"
        )


def run_arguments(arguments: Sequence[str], folder: str) -> int:
    """Runs a command line in a process of Ray, in the folder of the one that started it."""
    os.chdir(folder)
    return int(importlib.import_module(PROGRAM).main(["run", *arguments]))


@contextmanager
def _connect(settings: RaySettings) -> Iterator[Any]:
    """Connects Ray to the cluster. Raises ConfigError."""
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
