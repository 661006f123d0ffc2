"""Commands of the docs run in an empty folder, as those of `tests/bench` do."""

from tests.bench.conftest import elsewhere

__all__ = ["elsewhere"]
