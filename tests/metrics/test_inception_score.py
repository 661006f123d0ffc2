"""Inception Score: against torch-fidelity, and at its extremes."""

import pytest
import torch
from torch_fidelity.metric_isc import isc_features_to_metric

from metrics import MetricError
from metrics.fid import inception_score


def test_it_is_torch_fidelity_s() -> None:
    logits = 3 * torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    theirs = isc_features_to_metric(logits, splits=10, shuffle=False)
    ours = inception_score(logits.double().softmax(1))
    assert ours.value == pytest.approx(theirs["inception_score_mean"], rel=1e-6)
    assert ours.lo < ours.value < ours.hi


def test_images_of_one_class_have_1_and_of_all_classes_as_many() -> None:
    one = torch.zeros(40, 4)
    one[:, 2] = 1
    assert inception_score(one).value == pytest.approx(1)
    assert inception_score(torch.eye(4).repeat(10, 1)).value == pytest.approx(4)
    with pytest.raises(MetricError, match="20 images or more, found 19"):
        inception_score(one[:19])
