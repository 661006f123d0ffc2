"""The scenes data set: reproducible, batch independent, and captions that tell the truth."""

import itertools
from dataclasses import fields

import numpy as np
import pytest

from decoders.tiny import scenes as at
from decoders.tiny.render import scene_batch
from decoders.tiny.scenes import (
    ATTRIBUTES,
    SPLITS,
    alter,
    caption_tokens,
    counterfactual,
    scene_captions,
    vocabulary,
)


def test_a_scene_does_not_depend_on_its_batch():
    whole = scene_batch("train", range(70))
    again = scene_batch("train", range(70))
    np.testing.assert_array_equal(whole.images, again.images)
    for i in (0, 5, 31, 32, 69):
        alone = scene_batch("train", [i])
        np.testing.assert_array_equal(alone.images[0], whole.images[i])
        assert alone.captions[0] == whole.captions[i]
    picked = scene_batch("train", [69, 3, 3])
    np.testing.assert_array_equal(picked.images, whole.images[[69, 3, 3]])
    assert scene_captions("train", range(70)) == list(zip(whole.captions, whole.specs, strict=True))


def test_splits_and_seeds_differ():
    images = [scene_batch(split, range(4)).images for split in SPLITS]
    images.append(scene_batch("train", range(4), seed=1).images)
    for first, second in itertools.combinations(images, 2):
        assert (np.abs(first - second).mean(axis=(1, 2, 3)) > 0.01).all()


def test_captions_stay_in_the_vocabulary_and_every_value_occurs():
    known, drawn = vocabulary(), scene_captions("train", range(4000))
    assert len(known) == len(set(known))
    said = [caption_tokens(caption) for caption, _ in drawn]
    assert {token for tokens in said for token in tokens} == set(known)
    assert all(8 <= sum(t != "," for t in tokens) <= 28 for tokens in said)
    specs = [spec for _, spec in drawn]
    things = [thing for spec in specs for thing in spec.objects]
    for name, values in (("colour", at.COLOURS), ("shape", at.SHAPES), ("texture", at.TEXTURES),
                         ("size", at.SIZES)):  # fmt: skip
        assert {getattr(thing, name) for thing in things} == set(values)
    assert {s.relation for s in specs} == {None, *at.RELATIONS}
    assert {s.light for s in specs} == set(at.LIGHTS)
    assert all(at.separable(t.colour, s.background_colour) for s in specs for t in s.objects)


def _differences(first, second):
    """Names of the fields that differ, of the scene and of its objects."""
    names = [
        f.name
        for f in fields(first)
        if f.name != "objects" and getattr(first, f.name) != getattr(second, f.name)
    ]
    for a, b in zip(first.objects, second.objects, strict=True):
        names += [f.name for f in fields(a) if getattr(a, f.name) != getattr(b, f.name)]
    return names


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_alter_changes_exactly_one_attribute(attribute):
    rng = np.random.default_rng(0)
    for _, spec in scene_captions("gate", range(300)):
        if attribute == "relation" and spec.relation is None:
            continue
        changed = _differences(spec, alter(spec, attribute, rng))
        assert len(changed) == 1
        assert changed[0].startswith(attribute)


def test_counterfactual_words_differ_in_one_place():
    drawn = set()
    for i, (caption, _) in enumerate(scene_captions("gate", range(300))):
        right, wrong, attribute = counterfactual("gate", i)
        assert counterfactual("gate", i) == (right, wrong, attribute)
        assert right == caption and caption_tokens(right) != caption_tokens(wrong)
        drawn.add(attribute)
        if attribute in ("colour", "shape", "texture", "size"):
            pairs = zip(caption_tokens(right), caption_tokens(wrong), strict=True)
            assert sum(a != b for a, b in pairs) == 1
    assert drawn == set(ATTRIBUTES)


def test_the_image_shows_the_colour_and_relation_of_the_caption():
    batch = scene_batch("valid", range(400))
    hits = total = 0
    for image, spec in zip(batch.images, batch.specs, strict=True):
        if spec.relation is None or any(t.texture != "smooth" for t in spec.objects):
            continue
        centres = []
        for thing in spec.objects:
            colour = np.array(at.COLOURS[thing.colour])[:, None, None]
            near = np.exp(-((image - colour) ** 2).sum(0) / 0.01)
            centres.append(
                [(near.sum(axis) * np.arange(64)).sum() / near.sum() for axis in (0, 1)]
            )  # x, y
        dx, dy = np.subtract(*centres)
        gap = {"left": -dx, "right": dx, "above": -dy, "below": dy}[spec.relation]
        hits, total = hits + (gap > 0), total + 1
    assert total >= 3 and hits / total >= 0.8
