"""Intervals cover what they should, are reproducible, and refuse what has no interval."""

import numpy as np
import pytest

from metrics import MetricError
from metrics.stats import (
    Interval,
    bootstrap_mean,
    fastest_ratio,
    holm,
    jackknife,
    left_out,
    p_of_zero,
    paired_ratio,
    reseed_p,
    reseed_range,
)


def test_mean_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = sum(
        bootstrap_mean(rng.exponential(2.0, 80), resamples=400, seed=i).contains(2.0)
        for i in range(200)
    )
    assert 0.88 <= hits / 200 <= 0.99


def test_mean_interval_has_the_normal_width_and_is_reproducible():
    data = np.random.default_rng(1).normal(5, 3, 400)
    found = bootstrap_mean(data, seed=3)
    assert found.value == pytest.approx(data.mean())
    assert found.half_width == pytest.approx(1.96 * 3 / np.sqrt(400), rel=0.15)
    assert found == bootstrap_mean(data, seed=3)
    assert found != bootstrap_mean(data, seed=4)


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(2)
    prompt = rng.uniform(1, 10, 60)  # some prompts are ten times slower for everybody
    fast, slow = prompt, 2 * prompt * rng.normal(1, 0.01, 60)
    paired = paired_ratio(slow, fast)
    assert paired.contains(2.0)
    assert paired.half_width < 0.01
    shuffled = paired_ratio(rng.permutation(slow), fast)
    assert shuffled.half_width > 20 * paired.half_width
    assert paired_ratio([1.0, 9.0], [1.0, 3.0]).value == pytest.approx(2.5), "a ratio of means"


def test_an_interval_over_blocks_knows_what_a_block_has_in_common():
    rng = np.random.default_rng(5)
    hits = {True: 0, False: 0}
    for trial in range(200):  # what a moment does to one of both, and nothing else, moves the ratio
        moment = rng.normal(1, 0.05, 10).repeat(9)
        slow, fast = 2 * moment * rng.normal(1, 0.01, 90), rng.normal(1, 0.01, 90)
        for known in hits:
            blocks = np.arange(90) // 9 if known else None
            found = paired_ratio(slow, fast, blocks=blocks, seed=trial, resamples=400)
            hits[known] += found.contains(2.0)
    assert hits[True] / 200 >= 0.92 and hits[False] / 200 < 0.6


def test_blocks_that_differ_by_chance_alone_give_the_same_width():
    rng = np.random.default_rng(6)
    slow, fast = rng.normal(2, 0.2, 4000), rng.normal(1, 0.1, 4000)
    plain = paired_ratio(slow, fast)
    blocked = paired_ratio(slow, fast, blocks=np.arange(4000) // 40)
    assert blocked.value == plain.value
    assert blocked.half_width == pytest.approx(plain.half_width, rel=0.2)


def test_few_blocks_count_as_none_and_their_numbers_mean_nothing():
    slow, fast = np.arange(2.0, 14), np.arange(1.0, 13)
    assert paired_ratio(slow, fast, blocks=[7] * 6 + [9] * 6) == paired_ratio(slow, fast)
    sixes = np.arange(12) // 2
    named = paired_ratio(slow, fast, blocks=10 * sixes + 3)
    assert named == paired_ratio(slow, fast, blocks=sixes) != paired_ratio(slow, fast)


def test_an_interval_of_fastest_times_knows_of_other_moments():
    rng = np.random.default_rng(7)
    blocks, each = 4, 15
    pairs = rng.uniform(0.5, 1.5, blocks * each)  # prompts; the truth is over those of these
    shared = np.arange(blocks).repeat(each)
    moments = shared[:, None] + blocks * np.arange(3)
    hits = {"fastest": 0, "pairs alone": 0}
    for trial in range(200):
        slow = 2 * (1 + rng.exponential(0.2, (blocks, 3)))[shared]  # of a moment, to one of both
        fast = np.broadcast_to(pairs[:, None], slow.shape) * rng.uniform(1, 1.02, slow.shape)
        truth = 2 * (1 + 0.2 / 3) / pairs.mean() / 1.005  # the fastest of three such moments
        found = fastest_ratio(slow, fast, moments, seed=trial, resamples=400)
        hits["fastest"] += found.contains(truth)
        alone = paired_ratio(slow.min(1), fast.min(1), seed=trial, resamples=400)
        assert alone.value == found.value
        hits["pairs alone"] += alone.half_width >= found.half_width
    assert hits["fastest"] / 200 >= 0.9 and hits["pairs alone"] == 0


def test_fastest_times_in_one_moment_are_a_paired_ratio():
    rng = np.random.default_rng(8)
    slow, fast = rng.uniform(1, 2, 50), rng.uniform(2, 3, 50)
    found = fastest_ratio(slow[:, None], fast[:, None], np.zeros((50, 1)))
    plain = paired_ratio(slow, fast)
    assert found.value == plain.value
    assert (found.lo, found.hi) == pytest.approx((plain.lo, plain.hi), abs=5e-3)
    slow = np.array([[4.0, 1.0], [4.0, 2.0], [4.0, 2.0]])
    fast = np.array([[2.0, np.nan], [2.0, 1.0], [2.0, 1.0]])  # a missed one counts for neither
    assert fastest_ratio(slow, fast, np.zeros((3, 2))).value == pytest.approx(8 / 4)


def test_jackknife_of_a_mean_is_its_standard_error():
    data = np.random.default_rng(4).normal(0, 2, 320)
    values = left_out(320, lambda gone: float(np.delete(data, gone).mean()), groups=320)
    found = jackknife(values)
    assert found.value == pytest.approx(data.mean())
    assert found.half_width == pytest.approx(1.96 * data.std(ddof=1) / np.sqrt(320), rel=1e-3)
    assert jackknife(values, least=found.value).lo == jackknife(values, most=found.value).hi


def test_jackknife_leaves_every_row_out_exactly_once():
    gone: list[np.ndarray] = []
    left_out(50, lambda rows: float(gone.append(rows) or len(rows)), groups=7)
    assert not len(gone[0]) and len(gone) == 8
    assert sorted(np.concatenate(gone).tolist()) == list(range(50))


def test_a_further_seed_lies_in_the_range_of_the_others():
    rng = np.random.default_rng(8)
    runs = rng.normal(18, 0.3, (2000, 5))
    inside = [reseed_range(seeds[:4]).contains(seeds[4]) for seeds in runs]
    assert 0.93 <= np.mean(inside) <= 0.97
    found = reseed_range([18.0, 18.3])  # of one other: twice its difference
    assert (found.value, found.lo, found.hi) == pytest.approx((18.0, 17.4, 18.6))


def test_holm_refuses_a_true_hypothesis_in_one_family_of_twenty() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([], 0.05) == []
    rng = np.random.default_rng(0)
    families = rng.uniform(size=(2000, 12))
    wrong = np.mean([any(holm(list(family), 0.05)) for family in families])
    alone = np.mean((families < 0.05).any(1))
    assert 0.035 < wrong < 0.065 and alone > 0.4


@pytest.mark.parametrize("seeds", [2, 4])
def test_a_further_seed_has_a_small_p_as_often_as_it_says(seeds: int) -> None:
    rng = np.random.default_rng(1)
    found = np.array([reseed_p(runs[:-1], runs[-1]) for runs in rng.normal(size=(4000, seeds + 1))])
    for level in (0.05, 0.5):
        assert np.mean(found < level) == pytest.approx(level, abs=0.02)
    assert np.isnan(reseed_p([1.0], 1.0)) and np.isnan(reseed_p([1.0, np.nan], 1.0))
    assert reseed_p([2.0, 2.0], 2.0) == 1 and reseed_p([2.0, 2.0], 3.0) == 0


def test_the_p_of_a_difference_is_that_of_its_interval() -> None:
    assert p_of_zero(Interval(1.0, 0.0, 2.0)) == pytest.approx(0.05)
    assert p_of_zero(Interval(-2.0, -3.0, -1.0)) == pytest.approx(8.9e-5, rel=0.02)
    assert p_of_zero(Interval(0.0, 0.0, 0.0)) == 1 and p_of_zero(Interval(1.0, 1.0, 1.0)) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap_mean([1.0]),
        lambda: bootstrap_mean([1.0, float("nan")]),
        lambda: bootstrap_mean([1.0, 2.0], resamples=0),
        lambda: paired_ratio([1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: paired_ratio([1.0, 2.0], [1.0, 0.0]),
        lambda: paired_ratio([1.0, 2.0], [1.0, 2.0], blocks=[1]),
        lambda: fastest_ratio([[1.0]], [[1.0]], [[0]]),
        lambda: fastest_ratio([[1.0], [2.0]], [[1.0], [2.0]], [[0]]),
        lambda: fastest_ratio([[1.0], [2.0]], [[1.0], [np.nan]], [[0], [0]]),
        lambda: fastest_ratio([[1.0], [2.0]], [[1.0], [0.0]], [[0], [0]]),
        lambda: left_out(2, lambda rows: 0.0),
        lambda: reseed_range([1.0]),
        lambda: reseed_range([1.0, float("nan")]),
    ],
)
def test_bad_input_is_an_error(call):
    with pytest.raises(MetricError):
        call()
