"""Hydra itself: a compose session, and its errors in words that name the nearest setting.

Why apart: `bench.config.compose` says what a study is, this file how Hydra 1.3 reports that
something is not there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bench.errors import ConfigError, nearest, unknown

PARTS = ("loop", "proposer", "drafter", "tree", "acceptance")
# Hydra merges its own groups (logging, launcher, ...) into every composition. Nothing here reads
# them. Without them a composition, of which a study needs one per decoder, takes 40 % of the time.
HYDRA_GROUPS = (
    "output",
    "launcher",
    "sweeper",
    "help",
    "hydra_help",
    "hydra_logging",
    "job_logging",
    "env",
)
WITHOUT_THEM = tuple(f"hydra/{group}=[]" for group in HYDRA_GROUPS)
QUOTED = """'decoders=[ar,{decoder: eagle2, name: mine, overrides: ["tree=dynamic_small"]}]'"""


def parse_override(word: str) -> Override:
    """One word of a command line. Raises ConfigError."""
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException as error:  # of its grammar, or an unknown function: name(...)
        bare = re.sub(r""""[^"]*"|'[^']*'""", "", word.partition("=")[2])
        if "overrides:" in bare and "=" in bare:
            raise ConfigError(
                f"cannot read the override {word!r}; overrides inside an entry stand in quotes of "
                "their own: " + QUOTED
            ) from error
        raise ConfigError(
            f"cannot read the override {word!r}; {_quoting(word)} ({str(error).splitlines()[0]})"
        ) from error
    except ValueError as error:  # a number that Python itself refuses to read
        raise ConfigError(f"cannot read the override {word[:60]!r}...: {error}") from error
    if override.is_sweep_override():
        path = "/" in word.partition("=")[2]
        raise ConfigError(
            f"{word!r} is a sweep; give one value, or list several entries in decoders="
            + (f"; if it is a path, {_quoting(word)}" if path else "")
        )
    return override


def _quoting(word: str) -> str:
    """How to write a word that Hydra's grammar does not take as it stands."""
    key, equals, value = word.partition("=")
    if not equals or not value or value[0] in "[{\"'":
        return "write key=value, for example latency.prompts=8"
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = shlex.quote(f'{key}="{inner}"')
    return f"a value with = ( ) , or the like is quoted for Hydra and for the shell: {quoted}"


@contextmanager
def hydra_session(config_module: str) -> Iterator[None]:
    """Hydra over `config_module`; whatever a notebook had initialised is put back afterwards."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(config_module, version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def compose_config(name: str, overrides: list[str]) -> DictConfig:
    """`hydra.compose` with its errors as ConfigError and the nearest names in them."""
    try:
        return compose(name, overrides=[*overrides, *WITHOUT_THEM])
    except MissingConfigException as error:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        if not group or error.options is None:
            raise ConfigError(str(error)) from error
        raise ConfigError(unknown(group, option, error.options)) from error
    except ConfigCompositionException as error:
        raise ConfigError(_composition(name, str(error))) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{name}: {error}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"a YAML file that {' '.join(overrides) or name} reads is damaged: {error}"
        ) from error


def _composition(name: str, message: str) -> str:
    """Hydra's words about a key, with the nearest known keys."""
    found = re.match(r"Could not override '([^']+)'", message)
    if not found:
        return message
    key = found.group(1)
    base = ["decoder=ar"] if name == "entry" else []
    known = list(_paths(compose(name, overrides=[*base, *WITHOUT_THEM]))) + list(PARTS)
    close = nearest(key, known)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"unknown setting {key!r}{hint} (`python -m bench list settings` shows all)"


def _paths(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of every setting."""
    for key in map(str, node):
        value = node._get_node(key)
        if isinstance(value, DictConfig) and not value._is_none() and len(value):
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved plain containers. Raises ConfigError on a value that is still `???`."""
    try:
        found: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a setting"
        if "Missing mandatory value" in str(error):
            raise ConfigError(f"{key} has no value; set it with {key}=...") from error
        raise ConfigError(str(error)) from error
    return {str(key): _at_home(value) for key, value in found.items()}


def _at_home(value: Any) -> Any:
    """With `~/` written out, as the shell does where it sees one: it sees none behind a `=`."""
    if isinstance(value, dict):
        return {key: _at_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_at_home(item) for item in value]
    if isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return str(Path(value).expanduser())
    return value
