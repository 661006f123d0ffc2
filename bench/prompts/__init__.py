"""Prompt sets. A loader is `load(count, **settings) -> list[Prompt]`; conf/prompts names them.

`@prompt_set` gives every loader the setting `limit` (the first so many), so that it means the same
everywhere.

Why checks here: an image's noise is a function of (seed, prompt), so a duplicate prompt is a
duplicate image and would narrow every interval without adding anything. What a model can read
(length, language) is its text encoder's to say.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.config.plugins import call, require_returned
from bench.config.schema import LoaderConfig
from bench.data.errors import ConfigError, PromptError
from decoders.text_files import require_size, said_as

if TYPE_CHECKING:
    from decoders.models.text.features import FeatureCache

MOST_NAME = 200  # characters of an id or a category
LESS = "lower latency.prompts and quality.images"


@dataclass(frozen=True)
class Prompt:
    """id: unique in its set and stable; category: free text, "" where the set has none."""

    id: str
    text: str
    category: str = ""


class PromptSet(list[Prompt]):
    """Prompts, and the features that they bring along: `text` is then used in place of the model's
    own text encoder."""

    def __init__(self, prompts: Iterable[Prompt], text: FeatureCache | None = None) -> None:
        super().__init__(prompts)
        self.text = text


class TooFewPrompts(PromptError):
    """A set that is smaller than what is wanted of it."""

    def __init__(self, source: str, have: int, wanted: int) -> None:
        less = f"{LESS}, or " if have else ""
        super().__init__(
            f"{source} has {have or 'no'} prompts, {wanted} are wanted; {less}give more prompts"
        )
        self.source, self.have = source, have


def prompt_set(load: Callable[..., Sequence[Prompt]]) -> Callable[..., PromptSet]:
    """The loader with `limit` (int or None) as a further setting.

    A loader is called as load(count, **settings): its first `count` prompts, None: all of them.
    Raises ConfigError on an impossible limit, PromptError where the set or the limit leaves fewer
    prompts than `count`.
    """

    @functools.wraps(load)
    def loader(
        count: int | None, *args: Any, limit: int | None = None, **settings: Any
    ) -> PromptSet:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(
                f"prompts.limit must be a whole number from 1 on or null, found {limit!r}"
            )
        try:
            with said_as(PromptError):
                found = load(count if limit is None else limit, *args, **settings)
        except TooFewPrompts as error:
            if limit is None:
                raise
            raise PromptError(
                f"prompts.limit={limit}, but {error.source} has {error.have} prompts; set "
                f"prompts.limit={error.have} or less, or null"
            ) from error
        if count is not None and len(found) < count:
            set_by = f"prompts.limit={limit}" if limit else "the loader"
            raise PromptError(f"{set_by} leaves {len(found)} prompts, {count} are wanted; {LESS}")
        return PromptSet(found[:count], getattr(found, "text", None))

    own = inspect.signature(load)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [*own.parameters.values(), inspect.Parameter("limit", kind, default=None)]
    loader.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return loader


def check(
    prompts: Sequence[Prompt], source: str, count: int | None, *, duplicates: bool = False
) -> list[Prompt]:
    """The first `count` prompts (None: all). Raises PromptError on an empty one, one that repeats
    another (unless `duplicates`), an id that stands twice, control characters, fields that are too
    long, or too few prompts (TooFewPrompts); `source` names the set."""
    if len(prompts) < (count or 1):
        raise TooFewPrompts(source, len(prompts), count or 1)
    first: dict[str, str] = {}
    ids: set[str] = set()
    for prompt in prompts[:count]:
        wrong = _wrong(prompt)
        if wrong is None and not duplicates and prompt.text in first:
            wrong = (
                f"the prompts {first[prompt.text]} and {prompt.id} are the same "
                f"({prompt.text!r}); they would give the same image twice, remove one"
            )
        if wrong is None and prompt.id in ids:
            wrong = (
                f"two prompts have the id {prompt.id!r}; ids name rows and pictures, so each "
                "prompt needs its own"
            )
        if wrong is not None:
            raise PromptError(f"{source}: {wrong}")
        with said_as(PromptError):
            require_size(prompt.text, f"{source}: the prompt {prompt.id}")
        ids.add(prompt.id)
        first[prompt.text] = prompt.id
    return list(prompts[:count])


def call_prompts(loader: LoaderConfig, count: int) -> Sequence[Prompt]:
    """The first `count` prompts of a set. Raises ConfigError where a loader returns something else,
    PromptError for too few prompts, an empty one or one that cannot be printed."""
    found = call(loader, count=count)
    source = f"{loader.name} ({loader.target})"
    listed = isinstance(found, Sequence) and not isinstance(found, str)
    require_returned(loader, found, listed, "a list of prompts")
    for prompt in found[:count]:
        fields = [getattr(prompt, name, None) for name in ("id", "text", "category")]
        if not isinstance(prompt, Prompt) or not all(isinstance(f, str) for f in fields):
            raise ConfigError(
                f"{source} must return prompts as bench.prompts.Prompt(id, text, category), all "
                f"strings; found {prompt!r}"
            )
    checked = check(found, source, count, duplicates=True)
    return found if isinstance(found, PromptSet) else checked


def _wrong(prompt: Prompt) -> str | None:
    """What is wrong with a prompt alone."""
    for key, value in (("id", prompt.id), ("category", prompt.category)):
        if len(value) > MOST_NAME or not value.isprintable():
            return (
                f"the {key} {value[:60]!r} must be at most {MOST_NAME} printable characters, found "
                f"{len(value)}"
            )
    if not prompt.text.strip():
        return f"the prompt {prompt.id} is empty; remove it or write one"
    if not prompt.text.isprintable():
        return f"the prompt {prompt.id} holds control characters: {prompt.text[:60]!r}"
    return None
