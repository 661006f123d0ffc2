"""Features do not depend on batching."""

from dataclasses import replace

import pytest
import torch

from metrics import MetricError
from metrics.features import ScenesClipFeatures
from metrics.images import features_of
from metrics.reference import scenes_statistics
from metrics.scenes_clip import ScenesClip

from .conftest import small_config


@pytest.fixture
def extractor(clip) -> ScenesClipFeatures:
    return ScenesClipFeatures(clip=clip)


def test_features_do_not_depend_on_batching_and_lie_on_a_sphere(extractor, images):
    whole, parts = features_of(extractor, images), features_of(extractor, images, batch=3)
    assert whole.shape == (40, 16)
    assert torch.allclose(whole, parts, atol=1e-4)
    unit = extractor.clip.image_features(images.source[:4]).detach()
    assert torch.allclose(whole[:4], 4 * unit, atol=1e-4)


def test_bad_requests_are_refused(extractor, images, tmp_path):
    with pytest.raises(MetricError, match="at least 2"):
        scenes_statistics(extractor, 1, tmp_path)
    with pytest.raises(MetricError, match="found none"):
        features_of(extractor, replace(images, source=()))
    broken = ScenesClip(small_config())
    with torch.no_grad():
        broken.model.visual.proj.fill_(float("nan"))
    with pytest.raises(MetricError, match="40 of 40 images have features that are not finite"):
        features_of(ScenesClipFeatures(clip=broken), images)
