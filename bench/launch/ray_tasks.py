"""launch=ray: plain tasks of Ray Core, on a cluster that runs or on this machine. Ray starts a task
again whose worker died; the task resumes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.console import progress
from bench.errors import ConfigError
from bench.launch.settings import LaunchConfig
from bench.launch.task import Lost, Task


def run_ray(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> list[Lost]:
    """Runs the tasks and waits; returns what was lost. logs: unused, Ray forwards what workers
    say."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("launch=ray needs Ray: pip install 'lantern-bench[ray]'") from error
    lost = []
    with _connected(ray, launch):
        # max_calls: a process for each task, so that none finds what another has left.
        work = ray.remote(
            num_cpus=launch.cpus, num_gpus=launch.gpus, max_retries=launch.retries, max_calls=1
        )(perform)
        waiting = {work.remote(task): task for task in tasks}
        with progress(len(tasks), "shards", unit="shard") as bar:
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                task = waiting.pop(ready)
                try:
                    status = ray.get(ready)
                except ray.exceptions.RayError as error:
                    lost.append(Lost(task, f"its workers died: {str(error).splitlines()[0]}"))
                else:
                    if not task.ended(status):
                        lost.append(Lost(task, f"exit status {status}, see the worker's output"))
                bar.update()
    return lost


def perform(task: Task) -> int:
    """A task, as Ray calls it."""
    return task()


@contextmanager
def _connected(ray: Any, launch: LaunchConfig) -> Iterator[None]:
    """A connection to the cluster. What workers need of the environment, a task brings along: a
    runtime environment of Ray's would take an agent, and half a minute, to make."""
    own: dict[str, Any] = {"address": launch.address or "local"}
    if launch.address is None:
        own |= {"num_cpus": launch.workers * launch.cpus, "include_dashboard": False}
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(logging_level="warning", **own)
        signal.signal(signal.SIGTERM, terminated)  # Ray's handler would end this without a word
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at launch.address={launch.address}: {error}; start one with "
            "`ray start --head`, or leave the address out for one on this machine"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
