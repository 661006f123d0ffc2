"""Prompt sets. A loader is `load(count, **settings) -> list[Prompt]`; conf/prompts names them.

Why checks here: an image's noise is a function of (seed, prompt), so a duplicate prompt is a
duplicate image and would narrow every interval without adding anything. What a model can read
(length, language) is its text encoder's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import PromptError


@dataclass(frozen=True)
class Prompt:
    """id: unique in its set and stable; category: free text, "" where the set has none."""

    id: str
    text: str
    category: str = ""


def check(
    prompts: Sequence[Prompt], source: str, count: int, *, duplicates: bool = False
) -> list[Prompt]:
    """The first `count` prompts. Raises PromptError on an empty one, one that repeats another
    (unless `duplicates`), control characters, or too few prompts; `source` names the set."""
    if len(prompts) < count:
        raise PromptError(
            f"{source} has {len(prompts)} prompts, {count} are wanted; lower latency.prompts and "
            "quality.images, or give more prompts"
        )
    first: dict[str, str] = {}
    for prompt in prompts[:count]:
        if not prompt.text.strip():
            raise PromptError(f"{source}: the prompt {prompt.id} is empty; remove it or write one")
        if not prompt.text.isprintable():
            raise PromptError(
                f"{source}: the prompt {prompt.id} holds control characters: {prompt.text!r}"
            )
        if not duplicates and prompt.text in first:
            raise PromptError(
                f"{source}: the prompts {first[prompt.text]} and {prompt.id} are the same "
                f"({prompt.text!r}); they would give the same image twice, remove one"
            )
        first[prompt.text] = prompt.id
    return list(prompts[:count])
