"""Prompt sets. A loader is `load(count, **settings) -> list[Prompt]`; conf/prompts names them.

Why checks here: an image's noise is a function of (seed, prompt), so a duplicate prompt is a
duplicate image and would narrow every interval without adding anything. What a model can read
(length, language) is its text encoder's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.config.schema import LoaderConfig
from bench.errors import PromptError, plural
from decoders.files import one_line, require_readable
from decoders.kinds import validate_fields

MOST_NAME_CHARACTERS = 200  # characters of an id or a category


@dataclass(frozen=True)
class Prompt:
    """id: unique in its set and stable; text: kept byte for byte, white space too, as a model's
    tokens depend on it; category: free text, "" where the set has none."""

    id: str
    text: str
    category: str = ""

    def __post_init__(self) -> None:
        validate_fields(self, "a prompt's ")


class RepeatingPrompts(list[Prompt]):
    """A set in which a prompt may stand more than once."""


def load_prompts(loader: LoaderConfig, count: int | None, replicate: int = 0) -> list[Prompt]:
    """The first `count` prompts of a set, or those of a later replicate: k count ... (k + 1) count
    - 1; None: all. Raises ConfigError where a loader returns something else, PromptError for too
    few prompts and what `check` refuses."""
    last = None if count is None else (replicate + 1) * count
    prompts = loader.load(count=last)
    fits = isinstance(prompts, Sequence) and all(isinstance(one, Prompt) for one in prompts)
    loader.require(fits, prompts, "a list of bench.prompts.Prompt(id, text, category)")
    source = str(loader.kwargs.get("path") or f"prompts={loader.name}")
    check(prompts[:last], source, repeats=isinstance(prompts, RepeatingPrompts))
    if replicate and len(prompts) < (last or 1):
        raise PromptError(
            f"{source} has {plural(len(prompts), 'prompt')}, replicate={replicate} needs {last}: "
            f"{replicate + 1} times the {count} of a run. Give more prompts, or run the replicates "
            f"0 to {len(prompts) // (count or 1) - 1}"
        )
    if len(prompts) < (count or 1):
        raise PromptError(
            f"{source} has {plural(len(prompts), 'prompt')}, {count or 1:,} are wanted; lower "
            "latency.prompts and quality.images, or give more prompts"
        )
    return list(prompts[replicate * (count or 0) : last])


def check(prompts: Sequence[Prompt], source: str, repeats: bool = False) -> None:
    """Raises PromptError on an empty prompt, one that repeats another (unless `repeats`) and an id
    that stands twice, DecoderError on control characters and texts that are too long. source: names
    the set."""
    ids = set[str]()
    texts: dict[str, str] = {}
    for prompt in prompts:
        for key, name in (("id", prompt.id), ("category", prompt.category)):
            if len(name) > MOST_NAME_CHARACTERS or not name.isprintable():
                raise PromptError(
                    f"{source}: the {key} {name[:60]!r} must be at most {MOST_NAME_CHARACTERS} "
                    f"printable characters, found {len(name)}"
                )
        text = one_line(prompt.text)  # as it is compared
        require_readable(text, f"{source}: the prompt {prompt.id}")
        if not text:
            raise PromptError(f"{source}: the prompt {prompt.id} is empty; remove it or write one")
        if not repeats and text in texts:
            raise PromptError(
                f"{source}: the prompts {texts[text]} and {prompt.id} are the same "
                f"({text!r}); they would give the same image twice, remove one"
            )
        if prompt.id in ids:
            raise PromptError(
                f"{source}: two prompts have the id {prompt.id!r}; ids name rows and pictures, so "
                "each prompt needs its own"
            )
        ids.add(prompt.id)
        texts[text] = prompt.id
