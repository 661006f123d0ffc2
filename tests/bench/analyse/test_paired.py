"""Paired speed-ups: which timings count."""

import numpy as np
import pandas as pd
import pytest

from bench.analyse.line import codes_per_forward
from bench.analyse.paired import images_once, paired_speedup


def timed(decoder: str, seconds: list[float | None], nfe: int = 10) -> pd.DataFrame:
    """Latency rows, a block each; None failed."""
    return pd.DataFrame(
        {
            "decoder": decoder, "protocol": "latency", "prompt_index": range(len(seconds)),
            "seed": 0, "block": range(len(seconds)), "mal": 256 / nfe, "nfe": nfe,
            "status": ["failed" if s is None else "ok" for s in seconds],
            "seconds_total": np.array(seconds, float), "seconds_prefill": 0.0, "disturbed": False,
            "started_at": [f"2026-01-01T00:{i:02}:00+00:00" for i in range(len(seconds))],
        }
    )  # fmt: skip


def test_only_blocks_in_which_both_were_timed_are_compared() -> None:
    baseline = timed("ar", [6.0, None, 4.0, 8.0])
    decoder = timed("fast", [3.0, 1.0, None, 2.0])
    found = paired_speedup(baseline, decoder)
    assert found is not None and found.blocks == 2
    assert found.value == pytest.approx((2 * 4) ** 0.5)
    back = paired_speedup(decoder, baseline)
    assert back is not None and back.value == pytest.approx(1 / found.value)
    assert paired_speedup(baseline, decoder[decoder.block == 1]) is None
    assert paired_speedup(baseline, decoder.iloc[:0]) is None


def test_disturbed_timings_do_not_count() -> None:
    baseline, decoder = timed("ar", [2.0] * 12), timed("fast", [1.0] * 11 + [9.0])
    decoder.loc[11, "disturbed"] = True
    found = paired_speedup(baseline, decoder)
    assert found is not None and found.value == pytest.approx(2) and found.blocks == 11
    decoder.loc[5:, "disturbed"] = True
    assert paired_speedup(baseline, decoder) is None, "most are, so the others are hardly quiet"


def test_images_of_the_quality_protocol_say_how_many_forwards_are_usual() -> None:
    baseline, decoder = timed("ar", [1.0] * 12, 100), timed("fast", [0.5] * 12, 50)
    more = timed("fast", [0.0] * 12, 30).assign(protocol="quality", prompt_index=range(12, 24))
    base = timed("ar", [0.0] * 12, 100).assign(protocol="quality", prompt_index=range(12, 24))
    found = paired_speedup(pd.concat([baseline, base]), pd.concat([decoder, more]))
    assert found is not None and found.value == pytest.approx(100 / 40)
    codes = codes_per_forward(images_once(pd.concat([decoder, more])))
    assert codes.value == pytest.approx(256 / 30)
