"""FID, KID, precision and recall against independent formulas; their intervals; their errors."""

import logging

import numpy as np
import pytest
import scipy.linalg
import torch

from metrics.errors import MetricError
from metrics.fid import fid, kid, quality


def draw(count: int, seed: int, shift: float = 0.0, scale: float = 1.0, dims: int = 12):
    """Correlated features [count, dims] whose law depends on shift and scale only."""
    mix = np.random.default_rng(99).normal(0, 0.4, (dims, dims)) + np.eye(dims)
    rows = np.random.default_rng(seed).normal(0, scale, (count, dims)) @ mix + shift
    return torch.from_numpy(rows).float()


def test_fid_is_the_frechet_distance():
    a, b = draw(300, 1, 0.3, 1.2), draw(500, 2)
    x, y = a.double().numpy(), b.double().numpy()
    root = scipy.linalg.sqrtm(np.cov(x.T) @ np.cov(y.T))
    want = ((x.mean(0) - y.mean(0)) ** 2).sum()
    want += np.trace(np.cov(x.T) + np.cov(y.T) - 2 * root.real)
    assert fid(a, b) == pytest.approx(want, rel=1e-6)
    assert fid(b, b) == pytest.approx(0, abs=1e-6)


def test_kid_is_the_unbiased_mmd():
    a, b = draw(60, 3, 0.5), draw(60, 4)
    x, y = a.double().numpy(), b.double().numpy()

    def kernel(u, v):
        return (u @ v.T / u.shape[1] + 1) ** 3

    def off_diagonal(k):
        return (k.sum() - np.trace(k)) / (len(k) * (len(k) - 1))

    want = off_diagonal(kernel(x, x)) + off_diagonal(kernel(y, y)) - 2 * kernel(x, y).mean()
    found = kid(a, b)
    assert found.value == pytest.approx(want, rel=0.2)  # a mean over random subsets
    assert found.contains(want)


def test_precision_and_recall_are_shares_of_points_in_balls():
    a, b = draw(80, 5, 0.8, 1.3, dims=2), draw(100, 6, dims=2)
    found = quality(a, b, features="test")

    def share(points, centres):
        inside = 0
        own = np.sort(np.linalg.norm(centres[:, None] - centres[None], axis=-1), 1)[:, 3]
        for point in points:
            inside += bool((np.linalg.norm(point - centres, axis=1) <= own).any())
        return inside / len(points)

    x, y = a.double().numpy(), b.double().numpy()
    assert found.precision.value == pytest.approx(share(x, y), abs=1e-6)
    assert found.recall.value == pytest.approx(share(y, x), abs=1e-6)
    for figure in (found.precision, found.recall):
        assert 0 <= figure.lo <= figure.value <= figure.hi <= 1


def test_quality_orders_worse_and_better_sets_and_names_its_features():
    reference = draw(800, 7)
    same, worse = draw(200, 8), draw(200, 9, 0.7)
    good, bad = (quality(x, reference, features="scenes-clip") for x in (same, worse))
    assert good.features == "scenes-clip"
    assert (good.generated, good.reference) == (200, 800)
    assert good.fid.hi < bad.fid.lo
    assert good.kid.hi < bad.kid.lo
    assert good.precision.value > bad.precision.value


def test_fid_interval_holds_the_figure_and_its_spread_over_draws():
    reference = draw(500, 10)
    found = [quality(draw(120, 100 + i, 0.2), reference, features="t") for i in range(10)]
    spread = np.std([q.fid.value for q in found])
    assert all(q.fid.lo <= q.fid.value <= q.fid.hi for q in found)
    width = np.mean([q.fid.half_width for q in found]) / 1.96
    assert 0.6 * spread < width < 2.5 * spread


def test_the_bias_is_what_a_same_law_sample_shows():
    reference = draw(1500, 11)
    found = [quality(draw(120, 200 + i), reference, features="t") for i in range(3)]
    mean = np.mean([q.fid.value for q in found])
    assert mean > 0.1  # from finite sampling alone
    # The jackknife leaves n - n/32 rows in: its estimate is of the right size, not exact.
    assert np.mean([-q.fid_bias for q in found]) < 0 < mean
    assert np.mean([q.fid_bias for q in found]) == pytest.approx(mean, rel=0.5)


def test_singular_covariance_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        quality(draw(10, 12), draw(50, 13), features="t")
    assert "singular" in caplog.text


def test_too_few_nan_or_foreign_features_are_errors():
    reference = draw(50, 14)
    nan = draw(50, 15)
    nan[7, 3] = float("nan")
    for bad, message in (
        (draw(1, 16), "too few"),
        (nan, "NaN"),
        (draw(50, 17, dims=5), "different extractors"),
        (draw(50, 18)[:, 0], "must be"),
    ):
        with pytest.raises(MetricError, match=message):
            quality(bad, reference, features="t")
        with pytest.raises(MetricError, match=message):
            fid(bad, reference)
