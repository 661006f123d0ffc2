"""launch=local: workers as processes of this machine. One that dies is started again."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from bench.console import progress
from bench.launch.settings import LaunchConfig
from bench.launch.task import INTERRUPTED, Lost, Task

PR_SET_PDEATHSIG = 1  # of prctl(2)
LOOK = 0.1  # seconds between two looks at the workers


def run_local(tasks: Sequence[Task], launch: LaunchConfig, logs: Path) -> list[Lost]:
    """Runs the tasks, so many at once as there are workers; returns what was lost."""
    waiting, lost = deque((task, 0) for task in tasks), list[Lost]()
    running: dict[subprocess.Popen[bytes], tuple[Task, int]] = {}
    try:
        with progress(len(tasks), "shards", unit="shard") as bar:
            while waiting or running:
                while waiting and len(running) < launch.workers:
                    task, died = waiting.popleft()
                    running[start(task, logs)] = task, died
                time.sleep(LOOK)
                for process in [one for one in running if one.poll() is not None]:
                    task, died = running.pop(process)
                    status = process.returncode
                    again = (status < 0 or status == INTERRUPTED) and died < launch.retries
                    if again:
                        waiting.append((task, died + 1))
                        continue
                    bar.update()
                    if not task.ended(status):
                        lost.append(Lost(task, why(status, logs / f"{task.name}.log")))
    finally:
        stop(list(running))
    return lost


def start(task: Task, logs: Path) -> subprocess.Popen[bytes]:
    """A worker, which writes to a log of its own."""
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{task.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bench", *task.arguments()],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=task.cwd, env=os.environ | task.environment(), preexec_fn=end_with_launcher,
        )  # fmt: skip


def end_with_launcher() -> None:
    """Of a worker on Linux: when its launcher is killed, it is told to stop."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends workers that are at work, as Ctrl-C does."""
    for process in running:
        process.terminate()
    for process in running:
        process.wait()


def why(status: int, log: Path) -> str:
    """What became of a worker: a signal, or the error that its log ends with."""
    if status < 0:
        return f"its workers died ({signal.Signals(-status).name}, the last of them), see {log}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    last = (errors or lines or ["it says nothing"])[-1]
    return f"exit status {status}: {last.removeprefix('error: ')} (see {log})"
