"""torch-fidelity knows the extractor; features do not depend on batching; the cache is by hash."""

import pytest
import torch
import torch_fidelity
from torch.utils.data import TensorDataset

from decoders.tiny.scenes import scene_batch
from metrics import MetricError
from metrics.features import LAYER, NAME, ScenesClipFeatures, extract
from metrics.fid import fid
from metrics.kept import scenes_statistics
from metrics.scenes_clip import ScenesClip, save

from .conftest import small_config


class Bytes(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


@pytest.fixture
def extractor(clip) -> ScenesClipFeatures:
    return ScenesClipFeatures(clip=clip)


def test_features_do_not_depend_on_batching_and_lie_on_a_sphere(extractor, images):
    whole, parts = extract(extractor, images), extract(extractor, images, batch=3)
    assert whole.shape == (40, 16)
    assert torch.allclose(whole, parts, atol=1e-4)
    unit = extractor.clip.image_features(images[:4]).detach()
    assert torch.allclose(whole[:4], 4 * unit, atol=1e-4)


def test_torch_fidelity_runs_the_registered_extractor(clip, images, tmp_path):
    save(clip, tmp_path / "weights", {})
    shared = dict(
        feature_extractor=NAME,
        cuda=False,
        verbose=False,
        cache=False,
        save_cpu_ram=True,
        feature_extractor_weights_path=str(tmp_path / "weights"),
    )
    other = images.flip(-1)
    found = torch_fidelity.calculate_metrics(
        input1=Bytes(images), input2=Bytes(other), fid=True, prc=True, batch_size=16, **shared
    )
    stored = ScenesClipFeatures(feature_extractor_weights_path=str(tmp_path / "weights"))
    want = fid(extract(stored, images), extract(stored, other))
    assert found["frechet_inception_distance"] == pytest.approx(want, rel=1e-3, abs=1e-4)
    assert 0 <= found["precision"] <= 1


def test_reference_is_cached_and_equals_direct_extraction(extractor, tmp_path, monkeypatch):
    first = scenes_statistics(extractor, 21, tmp_path, batch=10).rows
    scenes = torch.from_numpy(scene_batch("reference", range(21)).images)
    assert torch.allclose(first, extract(extractor, scenes), atol=1e-4)
    monkeypatch.setattr(extractor, "forward", lambda *_: pytest.fail("not read from the cache"))
    assert torch.equal(scenes_statistics(extractor, 21, tmp_path).rows, first)
    assert len(list(tmp_path.iterdir())) == 1


def test_other_weights_and_counts_have_their_own_cache_files(extractor, tmp_path):
    scenes_statistics(extractor, 4, tmp_path)
    scenes_statistics(extractor, 5, tmp_path)
    other = ScenesClip(small_config())
    other.sha256 = "of other weights"
    scenes_statistics(ScenesClipFeatures(clip=other), 4, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_bad_requests_are_refused(extractor, images, tmp_path):
    with pytest.raises(MetricError, match="isc"):
        extractor.get_default_feature_layer_for_metric("isc")
    with pytest.raises(MetricError, match="uint8"):
        extractor(images.float())
    with pytest.raises(MetricError, match="at least 2"):
        scenes_statistics(extractor, 1, tmp_path)
    broken = ScenesClip(small_config())
    with torch.no_grad():
        broken.model.visual.proj.fill_(float("nan"))
    with pytest.raises(MetricError, match="40 of 40 images have features that are not finite"):
        extract(ScenesClipFeatures(clip=broken), images)
    assert extractor.get_provided_features_list() == (LAYER,)
