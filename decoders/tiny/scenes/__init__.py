"""Scenes: an unlimited procedural set of captioned 64x64 images.

Why: a tiny tokenizer and text-to-image model need data that is free, exactly reproducible, and
whose images vary much under one caption (random phases and noise), so that the autoregressive
model's next-code distribution is flat, which is the phenomenon the decoders are measured on.
"""

from decoders.tiny.scenes.attributes import ATTRIBUTES as ATTRIBUTES
from decoders.tiny.scenes.attributes import ObjectSpec as ObjectSpec
from decoders.tiny.scenes.attributes import SceneSpec as SceneSpec
from decoders.tiny.scenes.attributes import describe as describe
from decoders.tiny.scenes.attributes import vocabulary as vocabulary
from decoders.tiny.scenes.attributes import words as words
from decoders.tiny.scenes.dataset import SPLITS as SPLITS
from decoders.tiny.scenes.dataset import SceneBatch as SceneBatch
from decoders.tiny.scenes.dataset import alter as alter
from decoders.tiny.scenes.dataset import counterfactual as counterfactual
from decoders.tiny.scenes.dataset import scene_batch as scene_batch
from decoders.tiny.scenes.dataset import scene_captions as scene_captions
