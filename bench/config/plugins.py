"""Calls what a configuration names: `package.module.Class` or `module:Class`, imported only here.

Why: a wrong keyword in a YAML file should be named with its nearest known one, and a loader that
raises with its file and line, not end in a traceback from deep inside.
"""

from __future__ import annotations

import logging
from typing import Any

from bench.config.schema import LoaderConfig
from bench.data.errors import EXPLAINED, ConfigError, describe_error

log = logging.getLogger(__name__)


def call(loader: LoaderConfig, **extra: Any) -> Any:
    """`target(**extra, **kwargs)`. Raises DecoderError for an unknown target (nearest names shown),
    for one that cannot be imported, for keywords that it does not take and for values that are not
    of the kind it is annotated with; whatever the target raises is a ConfigError, unless it
    explains itself or is the system's."""
    from decoders.compose import check_keywords, resolve

    target = resolve(loader.target)
    if not callable(target):
        raise ConfigError(f"{loader.target} is not callable, so it cannot be a loader")
    check_keywords(loader.name, target, loader.kwargs, extra)
    try:
        return target(**extra, **loader.kwargs)
    except (*EXPLAINED, OSError):  # they say what to do; the command line explains the system's
        raise
    except Exception as error:
        log.info("%s raised", loader.target, exc_info=True)
        raise ConfigError(
            f"{loader.name} ({loader.target}) failed: {describe_error(error)}"
        ) from error


def require_returned(loader: LoaderConfig, found: Any, fits: bool, wanted: str) -> None:
    """Raises ConfigError where a loader returned something else than `wanted`."""
    if not fits:
        raise ConfigError(
            f"{loader.name} ({loader.target}) must return {wanted}, found {type(found).__name__}"
        )
