"""Options and fixtures of all tests."""

import gc
import os
import random
import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="modules and their tests in random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests come first, so that two processes end together."""
    if (seed := config.getoption("shuffle")) is not None:
        draw = lambda name: random.Random(f"{seed} {name}").random()  # noqa: E731
        items.sort(key=lambda item: (draw(item.nodeid.partition("::")[0]), draw(item.nodeid)))
        return
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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


def pytest_sessionstart() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's `&`


def pytest_sessionfinish() -> None:
    gc.unfreeze()
