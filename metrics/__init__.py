"""Metrics: images, traces or timings in, numbers with intervals out.

Pure of the harness: nothing here imports ``bench``. Every figure comes with an interval
(``stats``, ``speedup``), because a difference between two decoders means nothing without one.
"""


class MetricError(ValueError):
    """An input that gives no honest figure: too few images, NaN, a bad shape. Says what was
    expected, what was found and what to do."""
