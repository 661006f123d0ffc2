"""Held-out captions of the embedded scenes: what the tiny models can draw."""

from __future__ import annotations

from bench.prompts import Prompt
from decoders.tiny.scenes import scene_captions


def load(count: int, split: str = "bench", seed: int = 0) -> list[Prompt]:
    """The first `count` distinct captions of a split; the category says how many objects.

    Two scenes may have the same caption; the later one is skipped, as it would be the same image.
    """
    by_text: dict[str, Prompt] = {}
    start = 0
    while len(by_text) < count:
        indices = range(start, start + count)
        for index, (text, spec) in zip(indices, scene_captions(split, indices, seed), strict=True):
            category = "one object" if len(spec.objects) == 1 else "two objects"
            by_text.setdefault(text, Prompt(f"{split}-{seed}-{index:05d}", text, category))
        start += count
    return list(by_text.values())
