"""The protocol as a whole on stand-in networks: what is shared, cached, named and refused;
crops, resizings and sets of images."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as F

import metrics.images as module
from decoders.api import DecoderError
from metrics import MetricError
from metrics.images import (
    AS_IS,
    ImageSet,
    centre_crop,
    cleanfid,
    features_of,
    from_pil,
    image_files,
)
from metrics.papers import Evaluation

from .small_weights import Tiles, clip_file, fid, picture, small


def draw(folder, count, seed, size=(40, 30)):
    folder.mkdir()
    for number in range(count):
        picture(*size, seed + number).save(folder / f"{number}.png")
    return image_files(folder)


@pytest.fixture
def drawn(tmp_path):
    return draw(tmp_path / "drawn", 20, 1)


@pytest.fixture
def real(tmp_path):
    return draw(tmp_path / "real", 24, 50, (30, 50))


@pytest.fixture
def evaluation(tmp_path, monkeypatch):
    """evaluation(*metrics, **settings) with small networks in place of the large ones."""
    small(monkeypatch)
    weights = clip_file(tmp_path, wrap=True)

    def build(*metrics, **settings):
        files = dict.fromkeys(("inception", "vgg", "clip", "hps"), str(weights))
        given = {"weights": files, "cache_dir": tmp_path / "cache", "size": 16}
        return Evaluation(metrics, **given | settings)

    return build


def test_fid_of_folders_is_the_distance_of_their_features(evaluation, drawn, real):
    figures = evaluation("fid", "kid").figures(drawn, [], real)
    rows = [features_of(Tiles(), ImageSet(s, centre_crop(16))) for s in (drawn, real)]
    assert [f.key for f in figures] == ["fid", "fid_debiased", "kid"]
    assert figures[0].score.value == pytest.approx(fid(*rows), rel=1e-9)
    assert figures[0].name == "FID (tiles)" and figures[0].score.features == "tiles"
    assert (figures[0].images, figures[0].reference) == (20, 24)
    assert figures[0].preparation == "centre crop, Lanczos 16"
    assert len(figures[0].weights.sha256) == 64


def test_an_inception_score_needs_neither_reference_nor_captions(evaluation, drawn):
    (found,) = evaluation("is").figures(drawn, [], ())
    assert (found.key, found.images, found.reference) == ("is", 20, 0)
    assert found.name == "Inception Score (tiles)" and 1 <= found.score.value <= 12


def test_nothing_depends_on_the_batch(evaluation, drawn, real):
    names = ("fid", "kid", "precision_recall", "clip", "hps")
    captions = [f"a picture of {i} cats" for i in range(20)]
    one = evaluation(*names, batch=64).figures(drawn, captions, real)
    other = evaluation(*names, batch=3).figures(drawn, captions, real)
    for a, b in zip(one, other, strict=True):
        assert (a.name, a.images) == (b.name, b.images)
        assert a.score.value == pytest.approx(b.score.value, rel=1e-4, abs=1e-4)
        if a.key == "score":
            assert len(a.score.each) == 20
            assert np.mean(a.score.each) == pytest.approx(a.score.value)
            assert a.score.each == pytest.approx(b.score.each, rel=1e-4, abs=1e-4)
        else:
            assert a.score.each == ()


def test_a_reference_is_read_once_until_something_changes(evaluation, drawn, real, monkeypatch):
    seen: list[int] = []
    forward = Tiles.forward
    monkeypatch.setattr(Tiles, "forward", lambda self, x: seen.append(len(x)) or forward(self, x))

    def read(**settings):
        seen.clear()
        evaluation("fid", **settings).figures(drawn, [], real)
        return sum(seen) - len(drawn)

    assert [read(), read(), read(size=12)] == [24, 0, 24]
    Image.new("RGB", (30, 30), "red").save(real[3])
    assert [read(), read()] == [24, 0]


def test_a_damaged_file_of_kept_features_is_named(evaluation, drawn, real, tmp_path):
    evaluation("fid").figures(drawn, [], real)
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DecoderError, match=r"cannot be read.*delete it"):
        evaluation("fid").figures(drawn, [], real)


def test_bad_requests_are_refused(evaluation, drawn, real):
    with pytest.raises(MetricError, match="did you mean 'fid'"):
        evaluation("fdi")
    with pytest.raises(MetricError, match=r"kid needs a folder.*reference=DIR"):
        evaluation("clip", "kid").figures(drawn, ["a cat"] * 20, ())
    with pytest.raises(MetricError, match=r"clip needs the images' captions"):
        evaluation("clip").figures(drawn, [], real)


# ---- what is done to images, and how a set of them is read --------------------------------------


@pytest.mark.parametrize("shape", [(61, 40), (40, 61), (33, 48), (32, 32), (16, 16)])
def test_the_centre_crop_is_torchvisions_then_lanczos(shape):
    image = picture(*shape)
    side = min(shape)
    want = F.center_crop(image, [side, side]).resize((32, 32), Image.Resampling.LANCZOS)
    assert torch.equal(centre_crop(32).apply(image), from_pil(want))


def test_cleanfids_resizing_rounds_nothing_and_clips():
    step = np.zeros((40, 40, 3), dtype=np.uint8)
    step[:, 20:] = 255  # from black to white, which overshoots
    result = cleanfid(40).apply(Image.fromarray(step))
    assert result.dtype == torch.float32 and result.shape == (3, 299, 299)
    assert result.min() == 0 and result.max() == 255
    assert (result != result.round()).any()


@pytest.fixture
def folder(tmp_path):
    for number in (10, 2, 1, 33):
        picture(30 + number, 30, number).save(tmp_path / f"{number}.jpg")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "._2.jpg").write_bytes(b"what macOS keeps of 2.jpg")
    return tmp_path


def test_a_set_streams_its_files_and_batches_change_nothing(folder, monkeypatch):
    read = []
    real = module.open_rgb
    monkeypatch.setattr(module, "open_rgb", lambda file: read.append(file) or real(file))
    files = image_files(folder)
    assert [file.name for file in files] == ["1.jpg", "2.jpg", "10.jpg", "33.jpg"]
    images = ImageSet(files, centre_crop(16))
    first = images.part(0, 3)
    assert len(read) == 3 and first.shape == (3, 3, 16, 16) and first.dtype == torch.uint8
    both = torch.cat([first, images.part(3, 6)])
    assert torch.equal(both, torch.cat([images.part(at, at + 1) for at in range(4)]))


def test_sizes_that_differ_are_named(folder):
    with pytest.raises(MetricError, match=r"1\.jpg is \[3, 30, 31\].*expected a square"):
        ImageSet(image_files(folder), AS_IS).part(0, 4)
