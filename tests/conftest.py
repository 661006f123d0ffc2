"""Tests that measure run alone, also where `make test` runs two processes of tests."""

import fcntl
import gc
import os
import random
import signal
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="modules and their tests in random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests come first, so that two processes end together; those that want the room to
    themselves last, so that nobody waits for them in between."""
    if (seed := config.getoption("shuffle")) is not None:
        draw = lambda name: random.Random(f"{seed} {name}").random()  # noqa: E731
        items.sort(key=lambda item: (draw(item.nodeid.partition("::")[0]), draw(item.nodeid)))
        return
    marked = lambda item, name: item.get_closest_marker(name) is not None  # noqa: E731
    items.sort(key=lambda item: (marked(item, "alone"), not marked(item, "slow")))


def pytest_collection_finish() -> None:
    """All that is loaded leaves the garbage collector's sight. A run collects some twenty times:
    looking through every module each time took eight parts of nine of a toy study."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def frozen_heap_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run gives back what it had frozen, and with it all that was loaded before."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies ask for two threads, and get them also where the suite has one core to itself."""
    cores = max(2, os.cpu_count() or 2)
    monkeypatch.setattr("bench.measure.device.available_cores", lambda: cores)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exactness gate draws few small images: for verdicts that other checks decide."""
    monkeypatch.setattr("bench.judge.gate.sampled.DRAWN", 4096)


@pytest.fixture
def small_images(few_images: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it looks at 25 to 49 places and 256 codes, where else at 64 to 256 and 1024: for
    verdicts that hang on none of the others."""
    for name, value in (("batches.SIZES", (12, 5)), ("laws.LONG", (12, 6, 18)), ("laws.REAL", 256),
                        ("whole_law.LONG", (2, 6, 3)), ("whole_law.LATE", (2, 7, 3))):  # fmt: skip
        monkeypatch.setattr(f"bench.judge.gate.{name}", value)


def pytest_sessionstart(session: pytest.Session) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's `&`
    session.config.stash[LOCKS] = [path.open("wb") for path in lock_paths(session.config)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.unfreeze()
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
