"""Speed-up pairs prompts; accepted lengths follow the definitions of METHODS section 5."""

import numpy as np
import pytest
import torch

from decoders.api import CodeKind, Trace
from metrics.acceptance import acceptance, by_depth, from_trace, image_acceptance, kind_shares
from metrics.errors import MetricError
from metrics.latency import Timings, breakdown, latency, quiet_ratio, speedup


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


def test_latency_summary():
    found = latency(np.linspace(1, 2, 101))
    assert (found.count, found.median.value) == (101, 1.5)
    assert found.mean.value == pytest.approx(1.5)
    assert found.p95 == pytest.approx(1.95)
    with pytest.raises(MetricError):
        latency([1.0, -1.0])


def test_speedup_uses_shared_prompts_only():
    slow = {(i, 0): 2.0 + i for i in range(10)} | {("lost", 0): 500.0}
    fast = {(i, 0): (2.0 + i) / 2 for i in range(10)}
    assert speedup(slow, fast).value == pytest.approx(2.0)
    with pytest.raises(MetricError, match="found 1"):
        speedup({1: 1.0, 2: 1.0}, {2: 1.0, 3: 1.0})


def test_breakdown_adds_up_and_refuses_overlap():
    found = breakdown({"draft": [1.0, 2.0], "forward": [3.0, 3.0]}, [5.0, 6.0])
    assert found == pytest.approx({"draft": 1.5, "forward": 3.0, "other": 1.0})
    with pytest.raises(MetricError, match="overlap"):
        breakdown({"draft": [4.0, 4.0], "forward": [3.0, 3.0]}, [5.0, 6.0])
    with pytest.raises(MetricError):
        breakdown({"draft": [4.0]}, [5.0, 6.0])


def test_ar_has_mal_one_and_no_drafts():
    image = image_acceptance([-1, -1], range(16), 15)
    assert (image.mal, image.mal_no_bonus, image.nfe) == (1.0, 0.0, 15)
    assert by_depth([image])[0].rate == 0.0


def trace() -> Trace:
    """Two images of 8 codes: one steady, one whose last step is cut by the image's end."""
    step = torch.tensor([[0, 1, 1, 1, 2, 3, 3, 3], [0, 1, 1, 1, 1, 2, 2, 2]], dtype=torch.int32)
    zeros = torch.zeros(2, 8)
    return Trace(
        kind=zeros.to(torch.uint8),
        step=step,
        depth=zeros.to(torch.uint8),
        moved=zeros,
        bound=zeros,
        accepted=torch.tensor([[2, 0, 2], [3, 3, -1]], dtype=torch.int16),
        target_calls=torch.tensor([3, 2], dtype=torch.int32),
        drafter_calls=torch.tensor([3, 2], dtype=torch.int32),
    )


def test_mean_accepted_length_with_and_without_the_bonus():
    first, second = from_trace(trace())
    assert (first.mal, first.mal_no_bonus) == (7 / 3, 4 / 3)
    assert (second.mal, second.mal_no_bonus) == (7 / 2, 6 / 2)
    pooled = acceptance([first, second])
    assert pooled.mal.value == pytest.approx(14 / 5)
    assert pooled.mal_no_bonus.value == pytest.approx(10 / 5)
    assert pooled.nfe.value == 2.5
    assert pooled.mal.lo <= pooled.mal.value <= pooled.mal.hi


def test_acceptance_by_depth_does_not_try_past_the_end_of_the_image():
    rates = by_depth(from_trace(trace()))
    # accepted 2, 0, 2, 3, 3 (the last one cut): depth 1: 4 of 5, 2: 4 of 4, 3: 2 of 4.
    assert [(r.depth, r.trials) for r in rates] == [(1, 5), (2, 4), (3, 4)]
    assert [r.rate for r in rates] == [0.8, 1.0, 0.5]
    assert by_depth([]) == []


def test_traces_that_do_not_fit_are_refused():
    with pytest.raises(MetricError):
        image_acceptance([1, 1], [0, 1, 1, 2, 2], 3)  # three forwards, two steps
    with pytest.raises(MetricError):
        image_acceptance([3, 0], [0, 1, 1, 2], 2)  # three drafts accepted, two codes committed


def test_kind_shares():
    shares = kind_shares([[CodeKind.DRAFT, CodeKind.DRAFT, CodeKind.BONUS, CodeKind.TARGET]])
    assert shares == {"target": 0.25, "draft": 0.5, "relaxed": 0, "corrected": 0, "bonus": 0.25}
    for bad in ([], [7]):
        with pytest.raises(MetricError):
            kind_shares(bad)
