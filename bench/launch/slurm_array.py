"""launch=slurm: a job array through submitit. A job that is preempted, or runs out of time, is
queued again by submitit (`Task.checkpoint`); one that dies, by this."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.console import progress
from bench.errors import ConfigError
from bench.launch.settings import LaunchConfig
from bench.launch.task import Lost, Task

QUEUED = 1000  # times that a job may run out of time: each time it has come further


def run_slurm(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> list[Lost]:
    """Submits the tasks and waits; returns what was lost. Ctrl-C cancels the jobs."""
    executor = executor_of(launch, logs)
    left, lost = list(tasks), list[Lost]()
    with progress(len(left), "shards", unit="shard") as bar:
        for _ in range(launch.retries + 1):
            with executor.batch():
                jobs = [executor.submit(task) for task in left]
            try:
                found = [_result(*both) for both in zip(left, jobs, strict=True)]
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise
            both = list(zip(left, found, strict=True))
            bar.update(sum(why == "" for _, why in both))
            left = [task for task, why in both if why is None]
            lost += [Lost(task, why) for task, why in both if why]
            if not left:
                return lost
    return lost + [Lost(task, f"{launch.retries + 1} jobs died, see {logs}") for task in left]


def executor_of(launch: LaunchConfig, logs: Path) -> Any:
    """submitit's, with all that a job asks for. Raises ConfigError where it is not installed, or
    refuses a setting."""
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(
            "launch=slurm needs submitit: pip install 'lantern-bench[slurm]'"
        ) from error
    own = {"slurm_max_num_timeout": QUEUED} if launch.cluster == "slurm" else {}
    try:
        executor = submitit.AutoExecutor(folder=logs / "slurm", cluster=launch.cluster, **own)
        executor.update_parameters(
            name="lantern-bench",
            timeout_min=max(1, round(60 * launch.hours)),
            cpus_per_task=launch.cpus,
            gpus_per_node=int(launch.gpus),
            **({"slurm_array_parallelism": launch.workers} if own else {}),
            **launch.options,
        )
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        raise ConfigError(
            f"submitit refuses the launch: {error}; where there is no SLURM, launch=local and "
            "launch=ray work, and launch.options takes submitit's parameters alone"
        ) from error
    return executor


def _result(task: Task, job: Any) -> str | None:
    """What a job's worker refused; nothing for one that came to its end, None for one that died."""
    from submitit.core.utils import UncompletedJobError

    try:
        status = job.result()
    except UncompletedJobError:
        return None
    if task.ended(status):
        return ""
    return f"exit status {status}, see {job.paths.stderr}"
