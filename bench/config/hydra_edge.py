"""Hydra itself: a compose session, its errors in words that name the nearest setting, and settings
of a single command in Hydra's grammar.

Why apart: `bench.config.compose` says what a study is, this file how Hydra 1.3 reports that
something is not there.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.config.catalogue import groups
from bench.config.words import key_of
from bench.data.errors import ConfigError, did_you_mean, unknown
from decoders.spec import PARTS

log = logging.getLogger(__name__)
SEARCH = "hydra.searchpath"
# Hydra merges its own groups (logging, launcher, ...) into every composition. Nothing here reads
# them. Without them a composition, of which a study needs one per decoder, takes 40 % of the time.
HYDRA_GROUPS = "output launcher sweeper help hydra_help hydra_logging job_logging env"
WITHOUT_THEM = tuple(f"hydra/{group}=[]" for group in HYDRA_GROUPS.split())
QUOTED = """'decoders=[ar,{decoder: eagle2, name: mine, overrides: ["tree=dynamic_small"]}]'"""


def parse_override(word: str, sweeps: bool = False) -> Override:
    """One word of a command line; sweeps: `key=a,b` is one too. Raises ConfigError."""
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException as error:  # of its grammar, or an unknown function: name(...)
        raise ConfigError(
            f"cannot read the override {word!r}; {_quoting(word)} ({str(error).splitlines()[0]})"
        ) from error
    except ValueError as error:  # a number that Python itself refuses to read
        raise ConfigError(f"cannot read the override {word[:60]!r}...: {error}") from error
    if override.is_sweep_override() and not sweeps:
        path = f"; if it is a path, {_quoting(word)}" if "/" in word else ""
        raise ConfigError(
            f"{word!r} is a sweep, which only parts of decoders and `sampling` take; give one value"
            + path
        )
    return override


def alternatives(override: Override) -> list[Override]:
    """`key=a`, `key=b` of the sweep `key=a,b`; any other override alone."""
    if not override.is_sweep_override():
        return [override]
    key = str(override.input_line).partition("=")[0]  # with its + or ~
    try:
        values = list(override.sweep_string_iterator())
    except HydraException as error:  # interval(0,1), glob(*)
        raise ConfigError(
            f"{override.input_line!r} names no values ({error}); write them, as in {key}=A,B"
        ) from error
    return [parse_override(f"{key}={value}") for value in values]


def _quoting(word: str) -> str:
    """How to write a word that Hydra's grammar does not take as it stands."""
    key, _, value = word.partition("=")
    if "overrides:" in value:
        return f"overrides inside an entry stand in quotes of their own: {QUOTED}"
    if not value or value[0] in "[{\"'":
        return "write key=value, for example latency.prompts=8"
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = shlex.quote(f'{key}="{inner}"')
    return f"a value with = ( ) , or the like is quoted for Hydra and for the shell: {quoted}"


@contextmanager
def hydra_session() -> Iterator[None]:
    """Hydra over conf/; whatever a notebook had initialised is put back afterwards."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("conf", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def composed(name: str, words: Sequence[str]) -> dict[str, Any]:
    """conf/NAME.yaml under overrides, as plain containers. Raises ConfigError."""
    overrides = [str(parse_override(word).input_line) for word in words]
    with hydra_session():
        return compose_root(name, overrides)


def compose_root(name: str, overrides: list[str]) -> dict[str, Any]:
    """conf/NAME.yaml as plain containers, within a session. `backend=auto` is settled: a GPU that
    works, else the processor."""
    root = plain(compose_config(name, overrides))
    backend = root.get("backend")
    if not isinstance(backend, dict) or backend.get("name") != "auto":
        return root
    from decoders.execution.card import NO_CARD, card_fault

    others, device = [w for w in overrides if key_of(w) != "backend"], str(backend.get("device"))
    if device == "auto":
        others = [word for word in others if key_of(word) != "backend.device"]
        fault = card_fault()
        if fault not in (None, NO_CARD):
            log.warning("backend=auto runs on the processor: %s", fault)
        device = "cpu" if fault else "cuda"
    option = "cuda_graph" if device.startswith("cuda") else "cpu"
    return plain(compose_config(name, [*others, f"backend={option}"]))


def _require_folders(searchpath: str) -> None:
    """Raises ConfigError where a folder of `hydra.searchpath=...` is not there: its options would
    only be unknown."""
    places: Any = parse_override(searchpath).value()
    for place in places if isinstance(places, list) else [places]:
        folder = str(place).removeprefix("file://")
        if str(place).startswith("file://") and not Path(folder).is_dir():
            raise ConfigError(
                f"hydra.searchpath: {folder} is no folder; write file:// and the absolute path of "
                "a folder that holds groups, such as one with drafter/mine.yaml in it"
            )


def compose_config(name: str, overrides: list[str]) -> DictConfig:
    """`hydra.compose` with its errors as ConfigError and the nearest names in them."""
    for word in overrides:
        if key_of(word) == SEARCH:
            _require_folders(word)
    try:
        return compose(name, overrides=[*overrides, *WITHOUT_THEM])
    except MissingConfigException as error:
        group, _, option = str(error.missing_cfg_file).partition("/")  # which may be a path
        if not option or error.options is None:
            raise ConfigError(str(error)) from error
        raise ConfigError(unknown(group, option, error.options) + _a_path(group, option)) from error
    except ConfigCompositionException as error:
        raise ConfigError(_composition(name, overrides, str(error))) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{name}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"a YAML file that {' '.join(overrides) or name} reads is damaged: {error}"
        ) from error


def _composition(name: str, overrides: list[str], message: str) -> str:
    """Hydra's words about a key, with the nearest of those that the other overrides leave."""
    match = re.match(r"Could not override '([^']+)'", message)
    if not match:
        return message
    key = match[1]
    others = [word for word in overrides if key_of(word) != key]
    settings: Any = OmegaConf.to_container(compose_config(name, others))
    return f"unknown setting {key!r}{nearest(key, [*dotted(settings), *PARTS])}"


def nearest(key: str, known: Iterable[str]) -> str:
    """What to write in place of an unknown setting, and where all are shown."""
    group, _, setting = key.partition(".")
    listed = f"{group}=NAME" if setting and group in groups() else "settings"
    hint = options_with(key) or did_you_mean(key, known)
    return f"{hint} (`python -m bench list {listed}` shows all)"


def options_with(key: str) -> str:
    """`; to set it, add prompts=coco or prompts=file`: the options that have a setting of their
    group; "" where none has."""
    group, _, setting = key.partition(".")
    options = groups().get(group, {}).items()
    having = [f"{group}={k}" for k, text in options if setting in (yaml.safe_load(text) or ())]
    return f"; to set it, add {' or '.join(having)}" if having else ""


def _a_path(group: str, option: str) -> str:
    """How to give a path that stands where an option is expected."""
    added = options_with(f"{group}.path") if "/" in option or Path(option).suffix else ""
    return f". A path is given as {group}.path={option}{added}" if added else ""


def dotted(config: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Names of all settings, as in acceptance.delta."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved plain containers. Raises ConfigError on a value that is still `???`."""
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a setting"
        if "Missing mandatory value" in str(error):
            raise ConfigError(f"{key} has no value; set it with {key}=...") from error
        raise ConfigError(str(error)) from error
    return {str(key): value for key, value in values.items()}
