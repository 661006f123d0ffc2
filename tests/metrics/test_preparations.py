"""Crops and resizings against PIL and torchvision; image sets: order, streaming, bad files."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as F

import metrics.images as module
from metrics import MetricError
from metrics.images import ImageSet, image_files
from metrics.preparations import as_is, centre_crop, cleanfid, from_pil

from .small_weights import picture


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
        ImageSet(image_files(folder), as_is()).part(0, 4)
