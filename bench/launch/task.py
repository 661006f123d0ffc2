"""What a worker runs: one shard of a run, or the end of it, by the words of its command line.

Why words and not objects: every launcher starts the same command, so what a worker does is what a
user can do by hand, `python -m bench run ... shard=0/4`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INTERRUPTED = 130  # exit status of a worker that was told to stop
STOPS = (signal.SIGTERM, signal.SIGUSR2)  # Ray's; submitit's, for preemption and time-out


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
        from bench.__main__ import main

        os.chdir(self.cwd)
        os.environ.update(self.environment())
        sys.path[:] = dict.fromkeys((*self.path, *sys.path))  # in the launcher's order
        with interrupting() as stops:
            status = main(self.arguments())
        if status == INTERRUPTED:
            raise stops[0] if stops else SystemExit(INTERRUPTED)
        return status

    def checkpoint(self, *_: Any) -> Any:
        """For submitit, where a job is preempted or runs out of time: the same once more, which
        resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@contextmanager
def interrupting() -> Iterator[list[BaseException]]:
    """Schedulers' handlers of signals end a process by an exception. Raised inside a decoder it
    would be taken for the decoder's, so it is kept (the list), and KeyboardInterrupt raised."""
    stops: list[BaseException] = []

    def instead(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
        def handle(number: int, frame: Any) -> None:
            try:
                handler(number, frame)
            except BaseException as stop:
                stops.append(stop)
                raise KeyboardInterrupt from stop

        return handle

    found = {number: signal.getsignal(number) for number in STOPS}
    theirs = {number: handler for number, handler in found.items() if callable(handler)}
    for number, handler in theirs.items():
        signal.signal(number, instead(handler))
    try:
        yield stops
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)


THREADS = "LANTERN_BENCH_WORKER_THREADS"  # of a worker, where its launcher divides them


@dataclass(frozen=True)
class Lost:
    """A task that no worker came to the end of."""

    task: Task
    why: str


def tasks_of(words: Sequence[str], count: int, threads: int, offline: bool) -> list[Task]:
    """One for each shard."""
    return [Task(tuple(words), f"{i}/{count}", threads, offline) for i in range(count)]
