"""Streamed mean and covariance are those of all rows; FID from either is torch-fidelity's."""

import numpy as np
import pytest
import torch
from torch_fidelity import metric_fid, metric_prc

from metrics.errors import MetricError
from metrics.fid import fid, fid_interval
from metrics.moments import Moments
from metrics.precision_recall import precision_recall


def rows(count: int, seed: int, dims: int = 9, offset: float = 0.0) -> torch.Tensor:
    mix = np.random.default_rng(7).normal(0, 0.5, (dims, dims)) + np.eye(dims)
    drawn = np.random.default_rng(seed).normal(size=(count, dims)) @ mix + offset
    return torch.from_numpy(drawn).float()


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_stream_equals_all_rows_at_once(batch):
    data = rows(50, 1, offset=1000.0)  # far from zero: sums of squares would lose the covariance
    found = Moments.stream(data.split(batch))
    assert found.count == 50
    assert found.mean == pytest.approx(data.double().numpy().mean(0), rel=1e-12)
    assert found.covariance == pytest.approx(np.cov(data.double().numpy().T), rel=1e-9)


def test_taking_a_part_out_leaves_the_rest():
    data = rows(40, 2, offset=50.0)
    left = Moments.of(data).without(Moments.of(data[5:17]))
    want = Moments.of(torch.cat([data[:5], data[17:]]))
    assert left.count == want.count == 28
    assert left.mean == pytest.approx(want.mean, rel=1e-12)
    assert left.covariance == pytest.approx(want.covariance, rel=1e-8)


def test_fid_of_moments_is_torch_fidelitys_of_features():
    a, b = rows(80, 3, offset=0.2), rows(90, 4)
    want = metric_fid.fid_statistics_to_metric(
        metric_fid.fid_features_to_statistics(a.double()),
        metric_fid.fid_features_to_statistics(b.double()),
        False,
    )["frechet_inception_distance"]
    assert fid(a, b) == pytest.approx(want, rel=1e-9)
    streamed = Moments.stream(a.split(11)), Moments.stream(b.split(13))
    assert fid(*streamed) == pytest.approx(want, rel=1e-9)
    assert fid_interval(a, streamed[1])[0].value == pytest.approx(want, rel=1e-9)


def test_fid_of_fewer_images_than_features_is_finite_and_torch_fidelitys():
    a, b = rows(5, 5), rows(6, 6)
    stats = [metric_fid.fid_features_to_statistics(x.double()) for x in (a, b)]
    want = metric_fid.fid_statistics_to_metric(*stats, False)["frechet_inception_distance"]
    assert fid(a, b) == pytest.approx(want, abs=1e-5)


def test_precision_and_recall_are_torch_fidelitys():
    a, b = rows(70, 8, dims=3, offset=0.7), rows(60, 9, dims=3)
    want = metric_prc.prc_features_to_metric(
        a.double(),
        b.double(),
        prc_neighborhood=3,
        prc_batch_size=100,
        save_cpu_ram=False,
        verbose=False,
    )
    precision, recall = precision_recall(a, b)
    assert precision.value == pytest.approx(want["precision"], abs=1e-6)
    assert recall.value == pytest.approx(want["recall"], abs=1e-6)
    assert 0 < recall.value < 1


def test_blocks_of_distances_change_nothing(monkeypatch):
    import metrics.precision_recall as module

    a, b = rows(40, 10, dims=3, offset=0.5), rows(45, 11, dims=3)
    whole = precision_recall(a, b)
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert precision_recall(a, b) == whole


def test_too_little_is_refused():
    data = Moments.of(rows(4, 12))
    with pytest.raises(MetricError, match="at least one batch"):
        Moments.stream([])
    with pytest.raises(MetricError, match="leave none"):
        data.without(data)
    with pytest.raises(MetricError, match="at least 2"):
        fid(Moments.of(rows(1, 13)), data)
    with pytest.raises(MetricError, match="different extractors"):
        fid(data, Moments.of(rows(4, 14, dims=5)))
    with pytest.raises(MetricError, match="too few"):
        precision_recall(rows(4, 15), rows(9, 16))
