"""The prompts of a feature file, with their features: no text encoder is loaded.

A file that holds no prompts names them features:00000, features:00001, ...
"""

from __future__ import annotations

import logging

from bench.prompts import Prompt, PromptSet
from decoders.models.text.features import FeatureCache

log = logging.getLogger(__name__)


def load(count: int | None, path: str) -> PromptSet:
    """The prompts of a feature file (`decoders.models.text.features`). Raises DecoderError where it
    cannot be used."""
    cache = FeatureCache(path)
    if not cache.named:
        log.warning(
            "%s holds no prompts: scores of text and image (CLIP, HPS) mean nothing", cache.path
        )
    names = cache.ids or [f"features:{row:05d}" for row in range(cache.count)]
    groups = cache.categories or [""] * cache.count
    prompts = [Prompt(*row) for row in zip(names, cache.prompts, groups, strict=True)]
    return PromptSet(prompts, cache, repeats=True)
