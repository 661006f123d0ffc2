"""Scenes: an unlimited procedural set of captioned 64x64 images.

Why: a tiny tokenizer and text-to-image model need data that is free, exactly reproducible, and
whose images vary much under one caption (random phases and noise), so that the autoregressive
model's next-code distribution is flat, which is the phenomenon the decoders are measured on.
"""

from decoders.tiny.scenes.attributes import (
    ATTRIBUTES,
    ObjectSpec,
    SceneSpec,
    describe,
    vocabulary,
    words,
)
from decoders.tiny.scenes.dataset import (
    SPLITS,
    SceneBatch,
    alter,
    counterfactual,
    scene_batch,
    scene_captions,
)

__all__ = [
    "ATTRIBUTES",
    "SPLITS",
    "ObjectSpec",
    "SceneBatch",
    "SceneSpec",
    "alter",
    "counterfactual",
    "describe",
    "scene_batch",
    "scene_captions",
    "vocabulary",
    "words",
]
