"""Reliability of confidences: bins, depths and the expected calibration error."""

import numpy as np
import pytest

from decoders.api import CodeKind
from metrics import MetricError
from metrics.calibration import reliability

NONE = float("nan")  # no draft was tested
D, R, C, B = CodeKind.DRAFT, CodeKind.RELAXED, CodeKind.CORRECTED, CodeKind.BONUS


def test_a_draft_counts_at_its_depth_and_a_relaxed_one_as_rejected() -> None:
    kind = [CodeKind.TARGET, D, D, B, C, R, C]
    step = [0, 1, 1, 1, 2, 3, 3]
    sure = [NONE, 0.9, 0.7, NONE, 0.3, 0.5, 0.6]
    first, second = reliability([(kind, step, sure)])
    assert (first.depth, first.drafts, second.depth, second.drafts) == (1, 3, 2, 2)
    assert first.predicted == pytest.approx((0.9 + 0.3 + 0.5) / 3)
    assert first.accepted == pytest.approx(1 / 3)
    assert [b.accepted for b in first.bins] == [0, 0, 1]
    assert first.error == pytest.approx((0.3 + 0.5 + 0.1) / 3)
    assert second.error == pytest.approx((0.3 + 0.6) / 2)
    assert reliability([]) == reliability([(kind, step, [NONE] * 7)]) == []


def test_the_error_is_small_of_a_calibrated_drafter_and_its_bias_of_another() -> None:
    random = np.random.default_rng(0)
    sure = random.uniform(0.05, 0.75, 20_000)
    kind = np.where(random.uniform(size=20_000) < sure, D, C)
    step = np.arange(1, 20_001)
    (right,) = reliability([(kind, step, sure)])
    (wrong,) = reliability([(kind, step, sure + 0.2)])
    assert right.error < 0.02 and sum(b.drafts for b in right.bins) == 20_000
    assert wrong.error == pytest.approx(0.2, abs=0.02)


def test_what_is_no_confidence_is_named() -> None:
    with pytest.raises(MetricError, match="from 0 to 1"):
        reliability([([D], [1], [1.5])])
    with pytest.raises(MetricError, match=r"equal length, found \(1,\), \(2,\)"):
        reliability([([D], [1, 1], [0.5])])
