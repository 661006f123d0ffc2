"""Tests that measure run alone, also where `make test` runs two processes of tests."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import pytest

LOCKS = pytest.StashKey[list[IO[bytes]]]()


def lock_paths(config: pytest.Config) -> list[Path]:
    """Of the locks that the processes of this run share; none where there is one process."""
    run = getattr(config, "workerinput", {}).get("testrunuid")
    folder = Path(tempfile.gettempdir())
    return [folder / f"lantern-bench-{run}.{name}" for name in ("gate", "room")] if run else []


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[LOCKS] = [path.open("wb") for path in lock_paths(session.config)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    for lock in session.config.stash.get(LOCKS, []):
        lock.close()  # another process that is not done has opened its own
    for path in lock_paths(session.config):
        path.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Tests share the room; one marked `alone` has it to itself. It waits holding the gate, so that
    the other process cannot go on from test to test in front of it."""
    locks = item.config.stash[LOCKS]
    if not locks:
        return (yield)
    gate, room = locks
    fcntl.flock(gate, fcntl.LOCK_EX)
    fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
    fcntl.flock(gate, fcntl.LOCK_UN)
    try:
        return (yield)
    finally:
        fcntl.flock(room, fcntl.LOCK_UN)
