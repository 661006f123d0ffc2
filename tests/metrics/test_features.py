"""Features do not depend on batching; those of the reference are kept, by what they depend on."""

import pytest
import torch

from decoders.tiny.scenes import scene_batch
from metrics import MetricError
from metrics.features import ScenesClipFeatures, extract
from metrics.kept import scenes_statistics
from metrics.scenes_clip import ScenesClip

from .conftest import small_config


@pytest.fixture
def extractor(clip) -> ScenesClipFeatures:
    return ScenesClipFeatures(clip=clip)


def test_features_do_not_depend_on_batching_and_lie_on_a_sphere(extractor, images):
    whole, parts = extract(extractor, images), extract(extractor, images, batch=3)
    assert whole.shape == (40, 16)
    assert torch.allclose(whole, parts, atol=1e-4)
    unit = extractor.clip.image_features(images[:4]).detach()
    assert torch.allclose(whole[:4], 4 * unit, atol=1e-4)


def test_reference_is_kept_and_equals_direct_extraction(extractor, tmp_path, monkeypatch):
    first = scenes_statistics(extractor, 21, tmp_path, batch=10).rows
    scenes = torch.from_numpy(scene_batch("reference", range(21)).images)
    assert torch.allclose(first, extract(extractor, scenes), atol=1e-4)
    monkeypatch.setattr(extractor, "forward", lambda *_: pytest.fail("not read from the file"))
    assert torch.equal(scenes_statistics(extractor, 21, tmp_path).rows, first)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1


def test_bad_requests_are_refused(extractor, images, tmp_path):
    with pytest.raises(MetricError, match="at least 2"):
        scenes_statistics(extractor, 1, tmp_path)
    with pytest.raises(MetricError, match="found none"):
        extract(extractor, images[:0])
    broken = ScenesClip(small_config())
    with torch.no_grad():
        broken.model.visual.proj.fill_(float("nan"))
    with pytest.raises(MetricError, match="40 of 40 images have features that are not finite"):
        extract(ScenesClipFeatures(clip=broken), images)
