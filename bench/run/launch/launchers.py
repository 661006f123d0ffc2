"""Who runs the tasks of a launch: processes of this machine, a SLURM job array, or tasks of Ray.

Each takes (tasks, launch, folder of logs), and yields every task as it ends. A worker that dies is
started again, and resumes. submitit queues a job again that is preempted or runs out of time
(`Task.checkpoint`); Ray starts a task again whose worker died.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.console import progress
from bench.data.errors import INTERRUPTED, ConfigError
from bench.run.launch.task import LaunchConfig, Lost, Task
from bench.run.launch.watch import end_with_parent

LOOK = 0.1  # seconds between two looks at the workers
QUEUED = 1000  # times that a SLURM job may run out of time: each time it has come further


# Tasks, and why one is lost; "" for one that came to its end.
Ended = Generator[tuple[Task, str], None, None]


def run_local(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> Ended:
    """launch=local: so many processes at once as there are workers."""
    waiting = deque((task, 0) for task in tasks)
    running: dict[subprocess.Popen[bytes], tuple[Task, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < launch.workers:
                task, died = waiting.popleft()
                running[start(task, logs)] = task, died
            time.sleep(LOOK)
            for process in [one for one in running if one.poll() is not None]:
                task, died = running.pop(process)
                status = process.returncode
                if (status < 0 or status == INTERRUPTED) and died < launch.retries:
                    waiting.append((task, died + 1))
                else:
                    log = logs / f"{task.name}.log"
                    yield task, "" if task.ended(status) else why(status, log)
    finally:
        for process in running:  # as Ctrl-C does
            process.terminate()
        for process in running:
            process.wait()


def start(task: Task, logs: Path) -> subprocess.Popen[bytes]:
    """A worker, which writes to a log of its own."""
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{task.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bench", *task.arguments()],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=task.cwd, env=os.environ | task.environment(),
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # with its launcher
        )  # fmt: skip


def why(status: int, log: Path) -> str:
    """What became of a worker: a signal, or the error that its log ends with."""
    if status < 0:
        return f"its workers died ({signal.Signals(-status).name}, the last of them), see {log}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    last = (errors or lines or ["it says nothing"])[-1]
    return f"exit status {status}: {last.removeprefix('error: ')} (see {log})"


def run_slurm(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> Ended:
    """launch=slurm: a job array through submitit. Ctrl-C cancels the jobs."""
    executor, left = executor_of(launch, logs), list(tasks)
    from submitit.core.utils import UncompletedJobError

    for _ in range(launch.retries + 1):
        with executor.batch():
            jobs = [executor.submit(task) for task in left]
        died = []
        try:
            for task, job in zip(left, jobs, strict=True):
                try:
                    said = f"exit status {(status := job.result())}, see {job.paths.stderr}"
                    yield task, "" if task.ended(status) else said
                except UncompletedJobError:
                    died.append(task)
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
        left = died
        if not left:
            return
    yield from ((task, f"{launch.retries + 1} jobs died, see {logs}") for task in left)


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


def run_ray(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> Ended:
    """launch=ray: tasks of Ray Core, on a cluster that runs or on this machine. logs: unused, Ray
    forwards what workers say."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("launch=ray needs Ray: pip install 'lantern-bench[ray]'") from error
    with _connected(ray, launch):
        # max_calls: a process for each task, so that none finds what another has left.
        work = ray.remote(
            num_cpus=launch.cpus, num_gpus=launch.gpus, max_retries=launch.retries, max_calls=1
        )(perform)
        waiting = {work.remote(task): task for task in tasks}
        while waiting:
            try:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
            except (ray.exceptions.RayError, ConnectionError) as error:
                why = f"Ray itself has failed (its store?): {_first(error)}"
                yield from ((task, why) for task in waiting.values())
                return
            task = waiting.pop(ready)
            try:
                status = ray.get(ready)
                why = f"exit status {status}, see the worker's output"
                yield task, "" if task.ended(status) else why
            except ray.exceptions.RayError as error:
                yield task, f"its workers died: {_first(error)}"


def _first(error: Exception) -> str:
    """The first line of a message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


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


LAUNCHERS: dict[str, Callable[[Sequence[Task], LaunchConfig, Path], Ended]] = {
    "local": run_local,
    "slurm": run_slurm,
    "ray": run_ray,
}


def lost_of(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> list[Lost]:
    """Runs the tasks of a launch; returns those that no worker came to the end of."""
    lost, ended = list[Lost](), LAUNCHERS[launch.where](tasks, launch, logs)
    with progress(len(tasks), "shards", unit="shard") as bar, closing(ended):
        for task, why in ended:
            bar.update()
            lost += [Lost(task, why)] if why else []
    return lost
