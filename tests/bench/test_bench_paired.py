"""Paired speed-ups: which rounds of an image count, and whose times its interval is over."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bench.paired import paired_speedup, pairs, quiet
from metrics.stats import paired_ratio


def timed(decoder: str, *rounds: list[float | None], blocks: int = 1) -> pd.DataFrame:
    """Latency rows: seconds of each prompt, round by round; None failed."""
    rows = [
        {
            "decoder": decoder, "protocol": "latency", "prompt_index": prompt, "seed": 0,
            "repeat": repeat, "block": repeat * blocks + prompt * blocks // len(times),
            "status": "failed" if seconds is None else "ok",
            "seconds_total": seconds, "seconds_prefill": 0.0, "nfe": 10,
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
    assert found == paired_ratio([5.0, 2.0, 2.0], [3.0, 1.0, 1.0])
    still = quiet(baseline, decoder)
    assert still is not None and still.value == pytest.approx(2.0)
    back = paired_speedup(decoder, baseline)
    assert found is not None and back is not None
    assert back.value == pytest.approx(1 / found.value), "whoever lacks the round"


def test_an_image_without_a_common_round_is_left_out() -> None:
    baseline = timed("ar", [None, 8.0, 4.0], [2.0, 8.0, 4.0])
    decoder = timed("fast", [3.0, 4.0, 2.0], [None, 4.0, 2.0])
    assert pairs(baseline, decoder)[0].prompt_index.tolist() == [1, 2]
    assert paired_speedup(baseline, decoder) == paired_ratio([8.0, 4.0], [4.0, 2.0])
    few = decoder[decoder.prompt_index < 2]
    assert paired_speedup(baseline, few) is None and quiet(baseline, few) is None
    assert paired_speedup(baseline, decoder.iloc[:0]) is None


def test_blocks_are_moments_only_where_images_are_timed_once() -> None:
    slow, fast = [4.0 + i for i in range(12)], [2.0 + i % 5 for i in range(12)]
    once = paired_speedup(timed("ar", slow, blocks=6), timed("fast", fast, blocks=6))
    assert once == paired_ratio(slow, fast, blocks=np.arange(12) // 2)
    again = [timed(d, t, t, blocks=6) for d, t in (("ar", slow), ("fast", fast))]
    assert paired_speedup(*again) == paired_ratio(slow, fast) != once
