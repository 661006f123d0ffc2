"""Calls what a configuration names: `package.module.Class` or `module:Class`, imported only here.

Why: a wrong keyword in a YAML file should be named with its nearest known one, not end in a
TypeError from deep inside.
"""

from __future__ import annotations

import inspect
from typing import Any

from bench.config import LoaderConfig
from bench.errors import ConfigError, unknown


def call(loader: LoaderConfig, **extra: Any) -> Any:
    """`target(**extra, **kwargs)`. Raises DecoderError for an unknown target (nearest names shown),
    ConfigError for keywords that it does not take, DecoderError for values that are not of the
    kind it is annotated with, and whatever the target raises."""
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
    return target(**extra, **loader.kwargs)
