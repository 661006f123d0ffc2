"""Intervals over replicates hold a machine's ratio as often as they say, winners too."""

import math

import numpy as np
import pytest

from metrics.replicates import Replicated, narrower
from metrics.speedup import Speedup
from metrics.stats import LEVEL, Interval

STUDIES = 400
PROMPTS, BLOCKS = 40, 10
HOUR, MOMENT, LENGTH = 0.03, 0.01, 0.12  # standard deviations of logarithms


def pooled(runs: list[Speedup], level: float = LEVEL) -> Interval:
    return Replicated(dict(enumerate(runs))).interval(level)


def study(
    rng: np.random.Generator, truth: float, lengths: np.ndarray, hour: float = 0.0
) -> Speedup:
    """What one run measures: its hour moves the ratio, its prompts have lengths of their own."""
    e = lengths - lengths.mean()
    y = math.log(truth) + hour + lengths.mean() + rng.normal(0, MOMENT / math.sqrt(BLOCKS))
    moments = (MOMENT**2 / BLOCKS, BLOCKS - 1.0)
    return Speedup(math.exp(y), moments, dict(enumerate(e.tolist())), BLOCKS)


def share_held(replicates: int, hour: float, *, same_prompts: bool = False) -> float:
    rng, held = np.random.default_rng(replicates), 0
    for _ in range(STUDIES):
        first = rng.normal(0, LENGTH, PROMPTS)
        runs = [
            study(
                rng,
                1.4,
                first if same_prompts else rng.normal(0, LENGTH, PROMPTS),
                rng.normal(0, hour) if hour else 0.0,
            )
            for _ in range(replicates)
        ]
        held += pooled(runs).contains(1.4)
    return held / STUDIES


@pytest.mark.parametrize("hour", [0.0, HOUR], ids=["quiet machine", "hours differ"])
@pytest.mark.parametrize("replicates", [3, 5])
def test_replicates_hold_the_machine_s_ratio(replicates: int, hour: float) -> None:
    assert 0.93 <= share_held(replicates, hour) <= 0.999


def test_runs_on_the_same_prompts_do_not() -> None:
    """Why such runs cannot be pooled."""
    assert share_held(3, 0.0, same_prompts=True) < 0.85
    assert share_held(1, 0.0) == pytest.approx(0.95, abs=0.03)


def test_the_fastest_of_twelve_that_are_as_fast_as_ar_is_rarely_called_faster() -> None:
    rng, alone, together = np.random.default_rng(4), 0, 0
    for _ in range(STUDIES):
        hours = rng.normal(0, HOUR / 3, 5)
        every = [
            [study(rng, 1.0, rng.normal(0, LENGTH, PROMPTS), hour) for hour in hours]
            for _ in range(12)
        ]
        alone += any(pooled(runs).lo > 1 for runs in every)
        together += any(pooled(runs, LEVEL / 12).lo > 1 for runs in every)
    assert together / STUDIES <= 0.05 < 0.1 < alone / STUDIES


def test_two_decoders_are_told_apart_by_their_ratio_in_each_replicate() -> None:
    """An hour that slows both cancels in their ratio; by intervals over AR they would overlap."""
    rng = np.random.default_rng(3)
    hours = [-0.1, 0.0, 0.1]
    one, other, ratio = [], [], []
    for hour in hours:
        lengths = rng.normal(0, 0.01, (2, PROMPTS))
        one.append(study(rng, 1.3, lengths[0], hour))
        other.append(study(rng, 1.2, lengths[1], hour))
        ratio.append(study(rng, 1.3 / 1.2, lengths[0] - lengths[1]))
    assert pooled(one).lo < pooled(other).value
    assert pooled(ratio).lo > 1


def test_the_interval_is_student_s_and_never_narrower_than_the_runs_own_errors() -> None:
    runs = [Speedup(math.exp(y), (1e-8, 20.0)) for y in (0.1, 0.2, 0.3)]
    whole = pooled(runs)
    assert whole.value == pytest.approx(math.exp(0.2))
    assert math.log(whole.hi / whole.value) == pytest.approx(4.302653 * 0.1 / math.sqrt(3))
    same = pooled([Speedup(1.0, (0.04, 20.0))] * 3)
    assert math.log(same.hi) == pytest.approx(2.0003 * 0.2 / math.sqrt(3), rel=1e-3)
    unknown = pooled([Speedup(1.0), Speedup(1.1)])
    assert math.log(unknown.hi / unknown.value) == pytest.approx(
        12.7062 * math.log(1.1) / 2, rel=1e-4
    )
    alone = Speedup(1.2, (0.01, 30.0))
    assert pooled([alone]) == alone.interval(), "one run has its own interval"


def test_five_replicates_halve_the_interval_of_three() -> None:
    assert narrower(3, 5) == pytest.approx(0.4998, abs=1e-3)
