"""The interval of a speed-up holds the typical ratio as often as it says, whatever the machine."""

import math
from dataclasses import replace

import numpy as np
import pytest

from metrics import MetricError
from metrics.speedup import Speedup, Timings, speedup
from metrics.stats import Interval

AR, RUNS = 255, 400
STEP, DRAFT = 0.001, 0.0018  # seconds per step of AR and of the decoder on a quiet machine


def regimes(rng: np.random.Generator, seconds: np.ndarray, lasting: float = 60) -> np.ndarray:
    """A neighbour that comes and goes after about a minute: 0 or 1 at each time."""
    changes = np.cumsum(rng.exponential(lasting, int(seconds[-1] / 20) + 40))
    return (np.searchsorted(changes, seconds) + rng.integers(2)) % 2


def drift(rng: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    """Noise of standard deviation 1 that forgets as fast as `regimes` does: its autocorrelation
    falls by e in half a minute (Ornstein-Uhlenbeck)."""
    out = rng.normal(size=len(seconds))
    keep = np.exp(-np.diff(seconds, prepend=seconds[0]) / 30)
    for i in range(1, len(seconds)):
        out[i] = keep[i] * out[i - 1] + math.sqrt(1 - keep[i] ** 2) * out[i]
    return out


# Logarithms of what a moment does to AR and to the decoder, its mean first.
PROFILES = {
    "quiet": (0.0, lambda rng, at: 0.01 * drift(rng, at)),
    "two regimes": (0.5, regimes),
    "noisy": (0.0, drift),
    "five minutes": (0.5, lambda rng, at: regimes(rng, at, 300)),
}
MINUTES = ("quiet", "two regimes", "noisy")  # whose moments last about a minute
HITS = {"quiet": (1.0, 0.5), "noisy": (0.25, 0.12)}
HITS |= dict.fromkeys(("two regimes", "five minutes"), (0.4, 0.2))
NOISE = {"quiet": 0.01, "two regimes": 0.02, "noisy": 0.1, "five minutes": 0.02}  # of a timing
SHAPES = {"study=main": (10, 4), "study=exact": (10, 2)}  # blocks a minute apart, images of each


def simulated(
    rng: np.random.Generator, profile: str, blocks: int = 20, per_block: int = 2
) -> tuple[Timings, Timings, float]:
    """Both decoders, and the typical ratio: blocks a minute apart, images of a block 2 s apart."""
    mean, moments = PROFILES[profile]
    count = blocks * per_block
    block = np.arange(count) // per_block
    at = np.repeat(60.0 * block + 2.0 * (np.arange(count) % per_block), 2)
    at[1::2] += 1  # AR, then the decoder
    hit = moments(rng, at)
    every = rng.integers(60, 110, 100).astype(float)  # forwards, a prompt each
    mine = every[:count]
    steps = (
        s * np.exp(h * hit[i::2] + rng.normal(0, NOISE[profile], count))
        for i, (s, h) in enumerate(zip((STEP, DRAFT), HITS[profile], strict=True))
    )
    ar, decoder = (s * n for s, n in zip(steps, (AR, mine), strict=True))
    none, lengths = np.zeros(count), dict(enumerate(every))
    slow = Timings(block, none, ar, np.full(count, AR), dict.fromkeys(lengths, AR))
    fast = Timings(block, none, decoder, mine, lengths)
    one, other = HITS[profile]
    return slow, fast, math.exp(mean * (one - other)) * STEP * AR / (DRAFT * 84.5)


def coverage(found: list[tuple[Interval, float]]) -> tuple[float, float]:
    """The share of intervals that hold the truth; how much longer the upper arm is than the lower,
    in the logarithm and on average."""
    holds = np.mean([interval.contains(truth) for interval, truth in found])
    arms = [(math.log(i.hi / i.value), math.log(i.value / i.lo)) for i, _ in found]
    return float(holds), float(np.mean([(up - down) / (up + down) for up, down in arms]))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("profile", MINUTES)
def test_the_interval_holds_the_typical_ratio(profile: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(11)
    found = []
    for _ in range(RUNS):
        slow, fast, truth = simulated(rng, profile, *shape)
        made = speedup(slow, fast)
        assert made is not None
        found.append((made.interval(), truth))
    share, asymmetry = coverage(found)
    assert 0.91 <= share <= 0.98 and abs(asymmetry) < 0.05


def test_two_runs_differ_no_more_often_than_they_should() -> None:
    rng = np.random.default_rng(5)
    alarms = []
    for _ in range(RUNS):
        one, other = (speedup(*simulated(rng, "noisy")[:2]) for _ in range(2))
        assert one is not None and other is not None
        alarms.append(one.over(other).p < 0.05)
    assert 0.02 <= np.mean(alarms) <= 0.08


def test_the_prefill_has_its_share_and_images_of_other_lengths_are_worth_the_same() -> None:
    block, none = np.arange(12), np.zeros(12)
    lengths = dict(enumerate(np.linspace(40, 60, 12)))
    forwards = np.array(list(lengths.values()))
    slow = Timings(block, none + 0.1, none + 1.0, none + 100, dict.fromkeys(lengths, 100))
    fast = Timings(block, none + 0.1, forwards * 0.01, forwards, lengths)
    found = speedup(slow, fast)
    assert found is not None and found.blocks == 12
    assert found.value == pytest.approx(1.1 / (0.1 + 0.01 * 50))
    assert found.least == pytest.approx(found.greatest), "no moment differs from another"
    assert found.interval().lo < found.value, "but another twelve prompts would"
    back = speedup(fast, slow)
    assert back is not None and back.value == pytest.approx(1 / found.value)
    assert back.error == pytest.approx(found.error)
    again = found.over(found)
    assert again.value == 1 and again.p == 1, "the same codes: only moments tell runs apart"


def test_few_blocks_have_a_ratio_and_no_interval() -> None:
    slow, fast, _ = simulated(np.random.default_rng(0), "quiet", blocks=9)
    found = speedup(slow, fast)
    assert found is not None and found.blocks == 9
    assert math.isnan(found.interval().lo) and math.isnan(found.p)
    assert found.least < found.value < found.greatest
    assert speedup(slow, replace(fast, block=fast.block + 100)) is None
    assert speedup(slow, replace(fast, forwards_by_prompt={})) is None
    with pytest.raises(MetricError, match="positive"):
        speedup(slow, replace(fast, decoding=-fast.decoding))


def test_a_ratio_over_another_adds_their_errors() -> None:
    one, other = Speedup(2.0, (0.0009, 20)), Speedup(1.6, (0.0016, 30))
    found = one.over(other)
    error, freedom = found.error
    assert found.value == pytest.approx(1.25) and error == pytest.approx(0.05)
    assert 30 < freedom < 50
    lengths = {1: 0.1, 2: -0.1, 3: 0.0}
    apart = replace(one, lengths=lengths).over(replace(other, lengths={7: 0.1, 8: -0.1}))
    assert apart.error[0] ** 2 == pytest.approx(0.0025 + 0.01 / 3 + 0.02 / 2)
