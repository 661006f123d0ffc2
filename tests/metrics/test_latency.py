"""Ratios as on a quiet machine see past neighbours."""

import numpy as np
import pytest

from metrics import MetricError
from metrics.latency import Timings, quiet_ratio


def timings(run: str, prefill, total, forwards, moment=None) -> Timings:
    prompt = np.arange(len(total))
    return Timings(run, prompt, prompt if moment is None else moment, prefill, total, forwards)


def test_a_quiet_ratio_sees_past_neighbours_and_not_past_steps():
    rng = np.random.default_rng(7)
    noisy = np.where(rng.random(400) < 0.4, 1.5, 1.0)
    forwards = rng.integers(20, 80, 400).astype(float)  # few make a fast image, no fast step
    first = np.full(400, 0.1)
    slow = timings("", first, 0.1 + 100 * 0.01 * noisy, np.full(400, 100.0))
    fast = timings("", first, 0.1 + forwards * 0.02, forwards)
    found = quiet_ratio([slow], [fast])
    assert found.value == pytest.approx(1.1 / (0.1 + 0.02 * forwards.mean()))
    interval = found.interval()
    assert interval.lo < interval.value < interval.hi
    assert quiet_ratio([slow, slow], [fast]).p < 1e-6
    assert quiet_ratio([slow, fast], [fast, slow]).p == 1
    with pytest.raises(MetricError, match="same prompts"):
        quiet_ratio([slow], [timings("", first[:9], first[:9], forwards[:9])])


def busy(rng: np.random.Generator, run: str, seconds: float) -> tuple[Timings, Timings]:
    """AR and a decoder in turns, 10 moments of 8 prompts each; neighbours slow AR more."""
    moment = np.repeat(np.arange(10), 8)
    prompt = np.tile(np.arange(40), 2)
    load = 1 + rng.random(10)[moment]
    forwards = np.random.default_rng(0).integers(60, 90, 40).astype(float)[prompt]
    none = np.zeros(80)
    ar = Timings(run, prompt, moment, none, 0.4 * load, np.full(80, 255.0))
    slowed = (1 + 0.1 * (load - 1)) * rng.normal(1, 0.03, 80)
    return ar, Timings(run, prompt, moment, none, seconds * forwards * slowed, forwards)


def test_a_quiet_ratio_of_two_runs_finds_a_slowdown_and_rarely_one_that_is_not_there():
    rng = np.random.default_rng(3)
    alone, over_ar, slower = [], [], []
    for _ in range(60):
        (ar, mine), (their_ar, theirs) = busy(rng, "a", 0.004), busy(rng, "b", 0.004)
        alone.append(quiet_ratio([mine], [theirs], resamples=400).p)
        over_ar.append(quiet_ratio([mine, their_ar], [theirs, ar], resamples=400).p)
        slower.append(quiet_ratio([mine], [busy(rng, "b", 0.0044)[1]], resamples=400).p)
    assert np.mean(np.array(alone) < 0.05) < 0.15 and np.mean(np.array(over_ar) < 0.05) < 0.15
    assert np.mean(np.array(slower) < 0.01) > 0.9
