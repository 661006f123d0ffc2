"""Calls what a configuration names: `package.module.Class` or `module:Class`, imported only here.

Why: a wrong keyword in a YAML file should be named with its nearest known one, and a loader that
raises with its file and line, not end in a traceback from deep inside.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.config.schema import DecoderEntry, LoaderConfig
from bench.data.errors import ConfigError, Failure, attempt, described, own_errors, unknown

if TYPE_CHECKING:
    from bench.prompts import Prompt

log = logging.getLogger(__name__)


def call(loader: LoaderConfig, **extra: Any) -> Any:
    """`target(**extra, **kwargs)`. Raises DecoderError for an unknown target (nearest names shown),
    for one that cannot be imported and for values that are not of the kind it is annotated with,
    ConfigError for keywords that it does not take; whatever the target raises is a ConfigError too,
    unless it explains itself or is the system's."""
    from decoders.compose import check_keywords, resolve

    target = resolve(loader.target)
    if not callable(target):
        raise ConfigError(f"{loader.target} is not callable, so it cannot be a loader")
    parameters = inspect.signature(target).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in {**extra, **loader.kwargs}:
            if key not in parameters:
                raise ConfigError(unknown(f"setting of {loader.name}", key, parameters))
    check_keywords(loader.name, target, loader.kwargs, parameters)
    try:
        return target(**extra, **loader.kwargs)
    except own_errors(OSError):  # they say what to do; the command line explains the system's
        raise
    except (Exception, SystemExit) as error:
        log.info("%s raised", loader.target, exc_info=True)
        raise ConfigError(f"{loader.name} ({loader.target}) failed: {described(error)}") from error


def call_prompts(loader: LoaderConfig, count: int) -> Sequence[Prompt]:
    """The first `count` prompts of a set. Raises ConfigError where a loader returns something else,
    PromptError for too few prompts, an empty one or one that cannot be printed."""
    from bench.prompts import Prompt, PromptSet, check

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


def require_returned(loader: LoaderConfig, found: Any, fits: bool, wanted: str) -> None:
    """Raises ConfigError where a loader returned something else than `wanted`."""
    if not fits:
        raise ConfigError(
            f"{loader.name} ({loader.target}) must return {wanted}, found {type(found).__name__}"
        )


def tree_of(entry: DecoderEntry) -> Any:
    """The draft tree of an entry, built without the study's model: None where it drafts none, a
    `Failure` where it needs a model."""
    if entry.spec.tree is None:
        return None
    from decoders.api import Tree, completed
    from decoders.compose import build_part

    spec = entry.spec.tree
    no_model: Any = None
    return attempt(lambda: completed(build_part(spec, no_model), Tree))


def tree_sizes(entries: Sequence[DecoderEntry]) -> tuple[int, ...]:
    """The nodes of the entries' trees without their roots, every size once, the smallest first."""
    trees = [tree_of(entry) for entry in entries]
    sizes = {int(t.nodes) for t in trees if t is not None and not isinstance(t, Failure)}
    return tuple(sorted(sizes - {0}))
