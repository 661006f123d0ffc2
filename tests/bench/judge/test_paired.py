"""Paired speed-ups: which rounds of an image count, and whose times its interval is over."""

import numpy as np
import pandas as pd
import pytest

from bench.judge.paired import paired_speedup, pairs, quiet
from metrics.stats import fastest_ratio, paired_ratio


def timed(decoder: str, *rounds: list[float | None], blocks: int = 1) -> pd.DataFrame:
    """Latency rows: seconds of each prompt, round by round; None failed."""
    rows = [
        {
            "decoder": decoder, "protocol": "latency", "prompt_index": prompt, "seed": 0,
            "repeat": repeat, "block": repeat * blocks + prompt * blocks // len(times),
            "status": "failed" if seconds is None else "ok",
            "seconds_total": seconds, "seconds_prefill": 0.0, "nfe": 10, "disturbed": False,
        }
        for repeat, times in enumerate(rounds)
        for prompt, seconds in enumerate(times)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"seconds_total": float})


def test_only_rounds_that_both_decoded_are_compared() -> None:
    """Round 1 was quiet, and the decoder failed in it on prompt 0: its best is a noisy one."""
    baseline = timed("ar", [6.0, 8.0, 4.0], [2.0, 2.0, 2.0], [5.0, 8.0, 4.0])
    decoder = timed("fast", [3.0, 4.0, 2.0], [None, 1.0, 1.0], [4.0, 4.0, 2.0])
    theirs, ours = pairs(baseline, decoder)
    assert theirs.seconds_total.tolist() == [5.0, 2.0, 2.0]
    assert ours.seconds_total.tolist() == [3.0, 1.0, 1.0], "each the fastest of rounds 0 and 2"
    found = paired_speedup(baseline, decoder)
    assert found is not None
    assert found.value == pytest.approx(paired_ratio([5.0, 2.0, 2.0], [3.0, 1.0, 1.0]).value)
    still = quiet([("", baseline)], [("", decoder)])
    assert still is not None and still[0].value == pytest.approx(2.0)
    assert still[1] == 3
    back = paired_speedup(decoder, baseline)
    assert back is not None
    assert back.value == pytest.approx(1 / found.value), "whoever lacks the round"


def test_an_image_without_a_common_round_is_left_out() -> None:
    baseline = timed("ar", [None, 8.0, 4.0], [2.0, 8.0, 4.0])
    decoder = timed("fast", [3.0, 4.0, 2.0], [None, 4.0, 2.0])
    assert pairs(baseline, decoder)[0].prompt_index.tolist() == [1, 2]
    found = paired_speedup(baseline, decoder)
    assert found is not None and found.value == pytest.approx(2.0)
    few = decoder[decoder.prompt_index < 2]
    assert paired_speedup(baseline, few) is None and quiet([("", baseline)], [("", few)]) is None
    assert paired_speedup(baseline, decoder.iloc[:0]) is None


def test_intervals_are_over_the_moments_in_which_images_were_timed() -> None:
    slow, fast = [4.0 + i for i in range(12)], [2.0 + i % 5 for i in range(12)]
    blocks = np.arange(12) // 2
    once = paired_speedup(timed("ar", slow, blocks=6), timed("fast", fast, blocks=6))
    assert once == paired_ratio(slow, fast, blocks=blocks)
    late = [1.5 * t for t in slow]
    again = paired_speedup(timed("ar", late, slow, blocks=6), timed("fast", fast, fast, blocks=6))
    seconds = [np.stack(both, 1) for both in ((late, slow), (fast, fast))]
    assert again == fastest_ratio(*seconds, blocks[:, None] + [0, 6])
    assert again is not None and once is not None and again.value == once.value
    assert again.half_width > paired_ratio(slow, fast).half_width, "slow moments may come back"
