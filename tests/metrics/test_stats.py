"""Intervals cover what they should, are reproducible, and refuse what has no interval."""

import numpy as np
import pytest

from metrics import MetricError
from metrics.stats import (
    NOT_TOLD,
    NOT_WORSE,
    WORSE,
    differs_by_chance,
    jackknife,
    jackknife_values,
    non_inferiority,
    reseed_p,
    reseed_range,
    share_mean,
    student_mean,
    student_ratio,
    wilson,
)


@pytest.mark.parametrize("count", [8, 40])
def test_means_and_codes_per_forward_are_held_as_often_as_their_intervals_say(count: int):
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        mean, forwards = student_mean(rng.normal(2, 1, count)), rng.integers(60, 110, count)
        ratio = student_ratio(forwards * rng.normal(3, 0.2, count), forwards)
        hits.append((mean.contains(2.0), ratio.contains(3.0)))
    assert ((np.mean(hits, 0) >= 0.93) & (np.mean(hits, 0) <= 0.97)).all()
    assert student_ratio([1.0, 9.0], [1.0, 3.0]).value == pytest.approx(2.5), "a ratio of sums"
    for one in (student_mean([0.5]), student_ratio([1.0], [2.0])):
        assert one.value == 0.5 and np.isnan(one.lo) and np.isnan(one.hi), "without an interval"


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_intervals_of_shares_stay_in_their_range_and_hold_the_truth(share: float):
    """Of the pictures of one run, and over three runs of 70 pictures each."""
    rng, hits = np.random.default_rng(0), []
    for each in rng.random((2000, 3, 70)) < share:
        alone, over = wilson(each[0].mean(), 70, 1.96), share_mean(each.mean(1))
        hits.append((alone.contains(share), over.contains(share)))
        assert all(0 <= one.lo <= one.value <= one.hi <= 1 for one in (alone, over))
    assert (np.mean(hits, 0) >= 0.92).all()
    assert wilson(1.0, 70, 1.96).lo == pytest.approx(1 / (1 + 1.96**2 / 70)), "not sure"
    assert student_mean([0.9, 1.0, 1.0]).hi > 1 > share_mean([0.9, 1.0, 1.0]).hi


def test_jackknife_of_a_mean_is_its_standard_error():
    data = np.random.default_rng(4).normal(0, 2, 320)
    values = jackknife_values(320, lambda gone: float(np.delete(data, gone).mean()), groups=320)
    found = jackknife(values)
    assert found.value == pytest.approx(data.mean())
    assert found.half_width == pytest.approx(1.96 * data.std(ddof=1) / np.sqrt(320), rel=1e-3)
    assert jackknife(values, least=found.value).lo == jackknife(values, most=found.value).hi


def test_a_further_seed_lies_in_the_range_of_the_others():
    rng = np.random.default_rng(8)
    runs = rng.normal(18, 0.3, (2000, 5))
    inside = [reseed_range(seeds[:4]).contains(seeds[4]) for seeds in runs]
    assert 0.93 <= np.mean(inside) <= 0.97
    found = reseed_range([18.0, 18.3])  # of one other: twice its difference
    assert (found.value, found.lo, found.hi) == pytest.approx((18.0, 17.4, 18.6))


def test_two_single_runs_differ_by_chance_as_often_as_stated() -> None:
    rng = np.random.default_rng(3)
    apart = []
    for _ in range(4000):
        runs = rng.normal(size=6)  # four seeds of AR, and the two that are compared
        apart.append(abs(runs[4] - runs[5]) > differs_by_chance([*runs[:4]], 0.05))
    assert np.mean(apart) == pytest.approx(0.05, abs=0.015)
    assert np.isnan(differs_by_chance([1.0], 0.05))


def verdicts(loss: float, count: int, margin: float = 1.0, sd: float = 6.5) -> dict[str, float]:
    """How often each verdict is given at a true loss."""
    rng = np.random.default_rng(4)
    drawn = rng.normal(-loss, sd, (2000, count))
    means, sds = drawn.mean(1), drawn.std(1, ddof=1)
    said = [non_inferiority(m, s, count, margin).verdict for m, s in zip(means, sds, strict=True)]
    return {word: said.count(word) / 2000 for word in (NOT_WORSE, WORSE, NOT_TOLD)}


def test_a_loss_of_the_margin_is_called_not_worse_in_one_run_of_twenty() -> None:
    at_margin = verdicts(loss=1.0, count=260)
    assert at_margin[NOT_WORSE] == pytest.approx(0.05, abs=0.015)
    assert at_margin[WORSE] == pytest.approx(0.05, abs=0.015)
    assert verdicts(loss=0.0, count=260)[NOT_WORSE] == pytest.approx(0.8, abs=0.03)
    assert verdicts(loss=0.0, count=100)[NOT_TOLD] > 0.5, "too few images"
    assert verdicts(loss=3.0, count=260)[WORSE] > 0.99
    found = non_inferiority(0.0, 6.5, 50, 1.0)
    assert (found.verdict, found.images) == (NOT_TOLD, 262) and "262" in str(found)
    assert non_inferiority(0.4, 6.5, 50, 1.0).images == 262, "by its own s, not by its gain"
    assert str(non_inferiority(0.0, 65.0, 50, 1.0)) == "not told (n > 10,000)"
    near = non_inferiority(-0.8, 6.5, 300, 1.0)
    assert (near.verdict, near.images) == (NOT_TOLD, 6531), "a loss near the margin needs more"


@pytest.mark.parametrize("seeds", [2, 4])
def test_a_further_seed_has_a_small_p_as_often_as_it_says(seeds: int) -> None:
    rng = np.random.default_rng(1)
    found = np.array([reseed_p(runs[:-1], runs[-1]) for runs in rng.normal(size=(4000, seeds + 1))])
    for level in (0.05, 0.5):
        assert np.mean(found < level) == pytest.approx(level, abs=0.02)
    assert np.isnan(reseed_p([1.0], 1.0)) and np.isnan(reseed_p([1.0, np.nan], 1.0))
    assert reseed_p([2.0, 2.0], 2.0) == 1 and reseed_p([2.0, 2.0], 3.0) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: student_mean([]),
        lambda: student_mean([1.0, float("nan")]),
        lambda: student_ratio([], []),
        lambda: share_mean([0.5, 97.0]),
        lambda: reseed_range([1.0]),
        lambda: reseed_range([1.0, float("nan")]),
    ],
)
def test_bad_input_is_an_error(call):
    with pytest.raises(MetricError):
        call()
