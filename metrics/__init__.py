"""Metrics: images, traces or timings in, numbers with intervals out. None imports `bench`."""


class MetricError(ValueError):
    """An input that gives no honest figure: too few images, NaN, a bad shape. Says what was
    expected, what was found and what to do."""
