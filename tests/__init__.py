"""Makes `tests.bench.fakes` importable: some installed package also calls itself `tests`."""
