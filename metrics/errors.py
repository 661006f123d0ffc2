"""The one error of the metrics room: says what was expected, what was found and what to do."""


class MetricError(ValueError):
    """An input that gives no honest figure: too few images, NaN, a bad shape."""
