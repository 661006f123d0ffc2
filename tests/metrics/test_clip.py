"""The tiny CLIP: tokenizer, storage that notices damage, features, scores and preference, bad
images."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoders.api import DecoderError
from decoders.tiny.render import scene_batch
from decoders.tiny.scenes import counterfactual, scene_captions, vocabulary
from decoders.training.trainer import CURVE_FILE, TrainConfig
from metrics import MetricError
from metrics.clip import (
    CONFIG_FILE,
    WEIGHTS_DIR,
    WEIGHTS_FILE,
    ScenesClip,
    ScenesClipFeatures,
    clip_score,
    load,
    scenes_features,
)
from metrics.images import byte_images, features_of
from recipes.clip import attribute_preference, save, train

from .conftest import small_config

CAPTIONS = [caption for caption, _ in scene_captions("valid", range(40))]


@pytest.fixture
def folder(clip: ScenesClip, tmp_path: Path) -> Path:
    save(clip, tmp_path, {"preference": 0.5})
    return tmp_path


@pytest.mark.parametrize(
    ("caption", "message"),
    [("a small rod star", "red"), ("", "empty"), ("!", "empty"), ("a " * 50, "at most 38")],
)
def test_captions_that_do_not_fit_are_refused(clip, caption, message):
    with pytest.raises(DecoderError, match=message):
        clip.tokens([caption])


def test_stored_and_loaded_gives_the_same_features_to_half_precision(clip, folder, images):
    loaded = load(folder)
    assert len(loaded.sha256) == 64
    one, other = (features_of(net.image_features, images) for net in (loaded, clip))
    assert (one * other).sum(1).min() > 0.999


def test_damaged_weights_are_noticed(folder):
    path = folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DecoderError, match="SHA-256"):
        load(folder)
    path.unlink()
    with pytest.raises(DecoderError, match="make tiny"):
        load(folder)
    (folder / CONFIG_FILE).unlink()
    with pytest.raises(DecoderError, match=r"clip\.json does not exist"):
        load(folder)


def test_score_is_a_cosine_independent_of_batch_size(clip, images):
    scores = clip_score(clip, images, CAPTIONS)
    assert clip_score(clip, images, CAPTIONS, batch=7) == pytest.approx(scores, abs=1e-3)
    with torch.no_grad():
        one = clip.image_features(images.source[3:4]) @ clip.text_features(CAPTIONS[3:4]).T
    assert scores[3] == pytest.approx(100 * float(one), abs=1e-3)


def test_preference_is_right_when_the_right_caption_is_nearer(clip, images):
    pairs = [counterfactual("valid", i) for i in range(40)]
    found = attribute_preference(clip, images, pairs)
    flipped = attribute_preference(clip, images, [(w, r, a) for r, w, a in pairs])
    assert found + flipped == pytest.approx(1)
    assert attribute_preference(clip, images, [(r, r, a) for r, _, a in pairs]) == 0


def test_bad_images_are_refused(clip, images):
    with pytest.raises(MetricError, match=r"expected images \[n, 3, 64, 64\], found"):
        clip.image_features(images.source[:, :, :32])
    with pytest.raises(MetricError, match="39 captions"):
        clip_score(clip, images, CAPTIONS[:-1])
    with pytest.raises(MetricError, match="found none"):
        clip_score(clip, replace(images, source=()), [])


def test_features_lie_on_a_sphere(clip, images):
    extractor = ScenesClipFeatures(clip=clip)
    whole = features_of(extractor, images)
    assert whole.shape == (40, 16)
    unit = clip.image_features(images.source[:4]).detach()
    assert torch.allclose(whole[:4], 4 * unit, atol=1e-4)


def test_bad_features_are_refused(clip, images, tmp_path):
    with pytest.raises(MetricError, match="at least 2"):
        scenes_features(ScenesClipFeatures(clip=clip), 1, tmp_path)
    broken = ScenesClip(small_config())
    with torch.no_grad():
        broken.model.visual.proj.fill_(float("nan"))
    with pytest.raises(MetricError, match="40 of 40 images have features that are not finite"):
        features_of(ScenesClipFeatures(clip=broken), images)


def test_the_embedded_weights_fit_today_s_vocabulary():
    """They load, speak the grammar and prefer right captions."""
    clip = load()
    assert list(clip.config.words) == vocabulary()
    assert (WEIGHTS_DIR / WEIGHTS_FILE).stat().st_size <= 8 * 2**20
    held_out = range(500_000, 500_200)
    images = byte_images(torch.from_numpy(scene_batch("valid", held_out).images))
    pairs = [counterfactual("valid", i) for i in held_out]
    assert attribute_preference(clip, images, pairs) > 0.85


# ---- the recipe: a short run stores weights, resumes and improves --------------------------------


def read_curve(folder: Path) -> list[dict[str, float]]:
    with (folder / CURVE_FILE).open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


CONFIG = TrainConfig(steps=21, batch=16, lr=2e-3, clip_value=0, clip_norm=1, held_out=16)


def test_a_short_run_learns_stores_and_resumes(tmp_path):
    figures = train(CONFIG, tmp_path, tmp_path, shape=small_config())
    curve = read_curve(tmp_path)
    assert [row["step"] for row in curve] == [0, 20, 21]
    assert figures["steps"] == 21
    assert figures.keys() >= {"preference_colour", "preference_relation"}
    assert load(tmp_path).config.held_out == figures
    longer = train(replace(CONFIG, steps=41), tmp_path, tmp_path, shape=small_config())
    assert longer["steps"] == 41 and longer["seconds"] > figures["seconds"]
    rows = read_curve(tmp_path)
    assert rows[:3] == curve  # what was done is kept
    assert rows[-2]["loss"] < rows[0]["loss"]
