"""FID, KID, precision and recall against torch-fidelity; their intervals; errors."""

import logging

import numpy as np
import pytest
import torch
from torch_fidelity import metric_fid, metric_kid, metric_prc

import metrics.fid as module
from metrics import MetricError
from metrics.fid import Moments, fid_interval, kid, precision_recall

from .small_weights import fid


def draw(count: int, seed: int, shift: float = 0.0, scale: float = 1.0, dims: int = 12):
    """Correlated features [count, dims] whose law depends on shift and scale only."""
    mix = np.random.default_rng(99).normal(0, 0.4, (dims, dims)) + np.eye(dims)
    rows = np.random.default_rng(seed).normal(0, scale, (count, dims)) @ mix + shift
    return torch.from_numpy(rows).float()


@pytest.mark.parametrize(("count", "other", "tight"), [(80, 90, True), (5, 6, False)])
def test_fid_is_torch_fidelitys(count, other, tight):
    """Of fewer images than features too."""
    a, b = draw(count, 3, 0.2, dims=9), draw(other, 4, dims=9)
    stats = [metric_fid.fid_features_to_statistics(x.double()) for x in (a, b)]
    want = metric_fid.fid_statistics_to_metric(*stats, False)["frechet_inception_distance"]
    near = pytest.approx(want, rel=1e-9) if tight else pytest.approx(want, abs=1e-5)
    assert fid(a, b) == near and fid_interval(a, Moments.of(b))[0].value == near
    assert 0 <= fid(b, b) <= 1e-6


def test_kid_is_torch_fidelitys_of_all_rows():
    a, b = draw(60, 3, 0.5), draw(60, 4)
    one = metric_kid.kid_features_to_metric(
        a.double(), b.double(), kid_subsets=1, kid_subset_size=60, rng_seed=0, verbose=False
    )  # a subset of all rows
    assert kid(a, b).value == pytest.approx(one["kernel_inception_distance_mean"], rel=1e-9)


def test_precision_and_recall_are_torch_fidelitys_whatever_the_blocks(monkeypatch):
    a, b = draw(70, 8, 0.7, dims=3), draw(60, 9, dims=3)
    want = metric_prc.prc_features_to_metric(
        a.double(),
        b.double(),
        prc_neighborhood=3,
        prc_batch_size=100,
        save_cpu_ram=False,
        verbose=False,
    )
    precision, recall = whole = precision_recall(a, b)
    assert precision.value == pytest.approx(want["precision"], abs=1e-6)
    assert recall.value == pytest.approx(want["recall"], abs=1e-6)
    assert 0 < recall.value < 1
    for figure in whole:
        assert 0 <= figure.lo <= figure.value <= figure.hi <= 1
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert precision_recall(a, b) == whole


@pytest.mark.parametrize("figure", ["FID", "KID"])
def test_an_interval_is_as_wide_as_the_figures_spread_over_draws(figure):
    """Of images of the same law again and again."""
    reference = draw(500, 10, dims=24)
    moments, found = Moments.of(reference), []
    for i in range(120):
        rows = draw(100, 100 + i, 0.1, dims=24)
        found.append(fid_interval(rows, moments)[0] if figure == "FID" else kid(rows, reference))
    mean = np.mean([one.value for one in found])
    assert 0.92 <= np.mean([one.contains(mean) for one in found]) <= 0.99


def test_without_its_bias_fid_is_that_of_many_images():
    reference = Moments.of(draw(1500, 11))
    many = fid(draw(40_000, 12, 0.1), draw(1500, 11))
    few = [fid_interval(draw(100, 200 + i, 0.1), reference) for i in range(20)]
    assert np.mean([value.value for value, _ in few]) > 1.5 * many
    assert np.mean([debiased.value for _, debiased in few]) == pytest.approx(many, rel=0.3)


@pytest.mark.parametrize(("count", "other", "what"), [(10, 50, "generated"), (50, 9, "reference")])
def test_singular_covariance_is_warned_about_once(caplog, count, other, what):
    with caplog.at_level(logging.WARNING):
        for seed in (12, 14):
            fid_interval(draw(count, seed), Moments.of(draw(other, 13)))
    assert caplog.text.count("singular") == 1
    assert f"{min(count, other)} {what} images for 12 features" in caplog.text


@pytest.mark.parametrize("times", [1, 3, 8])
@pytest.mark.parametrize(("width", "scale", "shift"), [(4, 1, 0), (2048, 30, 0), (64, 1, 1e3)])
def test_a_set_is_as_precise_as_itself_however_often_images_repeat(width, scale, shift, times):
    g = torch.Generator().manual_seed(0)
    rows = (torch.randn(40, width, generator=g) * scale + shift).repeat(times, 1)
    both = precision_recall(rows[torch.randperm(len(rows), generator=g)], rows)
    assert [figure.value for figure in both] == [1, 1]


def test_too_few_images_are_an_error():
    reference = draw(50, 14)
    for figure in (kid, precision_recall, lambda x, y: fid_interval(x, Moments.of(y))):
        with pytest.raises(MetricError, match="2 generated images are too few: at least"):
            figure(draw(2, 16), reference)
