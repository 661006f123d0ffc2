"""The recipe's families differ in one attribute; a short run stores weights, resumes, improves."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from decoders.tiny.scenes import ObjectSpec, SceneSpec, scene_captions
from metrics.scenes_clip import load
from metrics.train_clip import (
    FAMILY,
    family,
    family_batch,
    labels_of,
    train,
)

from .conftest import small_config


def differences(a, b) -> int:
    """Number of attributes in which two scenes differ."""
    count = sum(
        getattr(x, name) != getattr(y, name)
        for x, y in zip(a.objects, b.objects, strict=True)
        for name in ("size", "texture", "colour", "shape")
    )
    return count + sum(
        getattr(a, name) != getattr(b, name)
        for name in ("relation", "background_kind", "background_colour")
    )


def test_families_are_distinct_and_differ_from_the_scene_in_one_or_two_attributes():
    ones = total = 0
    for index, (_, spec) in enumerate(scene_captions("train", range(300))):
        members = family(spec, np.random.default_rng(index))
        assert members[0] == spec
        assert len(members) == len(set(members)) == FAMILY
        steps = [differences(spec, other) for other in members[1:]]
        assert all(1 <= step <= 2 for step in steps)
        ones, total = ones + steps.count(1), total + len(steps)
    assert ones / total > 0.85  # two only where an attribute with two values is crossed


def test_batches_are_a_function_of_their_place():
    images, captions, labels = family_batch(8, 3, seed=5)
    again, same, _ = family_batch(8, 3, seed=5)
    tail, last, named = family_batch(10, 1, seed=5)
    assert (images == again).all() and captions == same
    assert (images[-FAMILY:] == tail).all() and captions[-FAMILY:] == last
    assert (labels[-FAMILY:] == named).all()
    assert len(set(captions)) == len(captions) == 3 * FAMILY
    assert family_batch(8, 3, seed=6)[1] != captions


def test_labels_name_objects_by_place_and_skip_the_absent_one():
    left = ObjectSpec("small", "cloudy", "red", "star")
    right = ObjectSpec("large", "smooth", "blue", "ring")
    ground = ("plain", "beige", "left")
    told = SceneSpec((left, right), "left", *ground), SceneSpec((right, left), "right", *ground)
    alone = SceneSpec((left,), None, *ground)
    upper = SceneSpec((left, right), "above", *ground)
    labels = labels_of([*told, alone, upper])
    assert torch.equal(labels[0], labels[1])  # the same picture in other words
    assert labels[2, 7:].tolist() == [-100] * 4
    assert torch.equal(labels[2, 1:7], labels[0, 1:7])
    assert labels[:, 0].tolist() == [1, 1, 0, 2]


def read_curve(folder: Path) -> list[dict[str, float]]:
    with (folder / "clip.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


OPTIONS = {"batch": 16, "config": small_config(), "held_out": 16}


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("clip")
    return folder, train(folder, steps=21, **OPTIONS)


def test_a_short_run_learns_stores_and_resumes(short, tmp_path):
    folder, figures = short
    curve = read_curve(folder)
    assert len(curve) == 2
    assert figures["training"]["steps"] == 21
    assert set(figures["preference_by_attribute"]) >= {"colour", "relation"}
    assert load(folder).config.held_out == figures
    shutil.copytree(folder, tmp_path / "more")
    longer = train(tmp_path / "more", steps=41, **OPTIONS)
    assert longer["training"]["steps"] == 41
    assert longer["training"]["seconds"] > figures["training"]["seconds"]
    rows = read_curve(tmp_path / "more")
    assert rows[:2] == curve  # what was done is kept
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_batches_that_hold_no_family_are_refused(tmp_path):
    with pytest.raises(ValueError, match="multiple of 4"):
        train(tmp_path, batch=10)
