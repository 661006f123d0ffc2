"""Inception Score: against torch-fidelity, at its extremes, and as a metric of `evaluate`."""

import pytest
import torch
from torch import Tensor
from torch_fidelity.metric_isc import isc_features_to_metric

from metrics import MetricError, papers
from metrics.fid import inception_score
from metrics.networks import Weights
from metrics.papers import Evaluation

from .small_weights import Tiles, clip_file, picture


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


def test_evaluate_measures_it_without_a_reference_or_captions(tmp_path, monkeypatch) -> None:
    class Classes(Tiles):
        def __init__(self, weights: Weights, device: str = "cpu") -> None:
            super().__init__()

        def classes(self, features: Tensor) -> Tensor:
            return features.double().softmax(1)

    monkeypatch.setitem(papers.NETWORKS, "inception", Classes)
    for number in range(20):
        picture(16, 16, number).save(tmp_path / f"{number}.png")
    files = tuple(sorted(tmp_path.glob("*.png")))
    weights = {"inception": str(clip_file(tmp_path))}
    (found,) = Evaluation(["is"], weights=weights, size=16).figures(files, [], ())
    assert (found.key, found.images, found.reference) == ("is", 20, 0)
    assert found.name == "Inception Score (tiles)" and 1 <= found.value.value <= 12
