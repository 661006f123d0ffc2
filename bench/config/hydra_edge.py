"""Hydra itself: it parses overrides and composes conf/; its errors get the nearest known names.

Why apart: `bench.config.compose` says what a study is, this file how Hydra 1.3 is called.
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
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.config.arguments import groups, key_of
from bench.errors import ConfigError
from decoders.errors import DecoderError, did_you_mean, unknown

log = logging.getLogger(__name__)
SEARCHPATH_KEY = "hydra.searchpath"
# Hydra merges its own groups (logging, launcher, ...) into every composition. Nothing here reads
# them. Without them a composition, of which a study needs one per decoder, takes 40 % of the time.
HYDRA_GROUPS = "output launcher sweeper help hydra_help hydra_logging job_logging env"
WITHOUT_HYDRA_GROUPS = tuple(f"hydra/{group}=[]" for group in HYDRA_GROUPS.split())
ENTRY_EXAMPLE = """'decoders=[ar,{decoder: eagle2, name: a, overrides: ["tree=dynamic_small"]}]'"""


def values_of(argument: str, sweeps: bool = False) -> dict[str, Any]:
    """{argument: its value}. sweeps: of `key=a,b` those of `key=a` and of `key=b`. Raises
    ConfigError."""
    key, _, value = argument.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    example = shlex.quote(f'{key}="{escaped:.200}"') if value else "latency.prompts=8"
    advice = (
        "write key=value, or key=A,B to sweep a part of decoders or `sampling`; a value with "
        f"= ( ) , or spaces in quotes: {ENTRY_EXAMPLE if value.startswith(('[', '{')) else example}"
    )
    if not key_of(argument):
        raise ConfigError(f"cannot read {argument!r:.200} (it names no setting); {advice}")
    try:
        (override,) = OverridesParser.create().parse_overrides([argument])
        if not override.is_sweep_override():
            return {argument: override.value()}
        alternatives = [f"{key}={text}" for text in override.sweep_string_iterator()]
    except (HydraException, ValueError) as error:  # ValueError: Python reads no number so long
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"cannot read {argument!r:.200} ({reason:.200}); {advice}") from error
    if not sweeps:
        raise ConfigError(f"{argument!r} is a sweep, which is not taken here; {advice}")
    return {text: value for one in alternatives for text, value in values_of(one).items()}


@contextmanager
def hydra_session(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra over conf/; whatever a notebook had initialised is put back afterwards. Where a text is
    expected and an argument reads as a number, the error says how to write the argument."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("conf", version_base="1.3"):
            yield
    except DecoderError as error:
        key, _, reason = str(error).partition(": ")
        values = [one.partition("=")[2] for one in arguments if key_of(one) == key]
        if values and "valid string" in reason:
            text = shlex.quote(f'{key}="{values[-1]}"')
            raise ConfigError(f"{error}; as text it is written {text}") from error
        raise
    finally:
        GlobalHydra.instance().hydra = outer


def composed(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """conf/NAME.yaml under arguments, as plain containers. `backend=auto` is settled: a GPU that
    works, else the processor. Raises ConfigError."""
    for argument in arguments:
        (value,) = values_of(argument).values()
        paths = isinstance(value, list) and key_of(argument) == SEARCHPATH_KEY
        for place in value if paths else ():
            folder = str(place).removeprefix("file://")
            if folder != place and not Path(folder).is_dir():
                raise ConfigError(
                    f"{SEARCHPATH_KEY}: {folder} is no folder; write file:// and the absolute path "
                    "of a folder that holds groups, such as one with drafter/mine.yaml in it"
                )
    with hydra_session(arguments):
        root = compose_config(name, arguments)
        backend = root.get("backend")
        if not isinstance(backend, dict) or backend.get("name") != "auto":
            return root
        from decoders.execution.gpu import NO_CARD, card_fault

        others = [one for one in arguments if key_of(one) != "backend"]
        device = str(backend.get("device"))
        if device == "auto":
            others = [one for one in others if key_of(one) != "backend.device"]
            fault = card_fault()
            if fault not in (None, NO_CARD):
                log.warning("backend=auto runs on the processor: %s", fault)
            device = "cpu" if fault else "cuda"
        option = "cuda_graph" if device.startswith("cuda") else "cpu"
        return compose_config(name, [*others, f"backend={option}"])


def compose_config(name: str, overrides: Sequence[str], whole: bool = True) -> dict[str, Any]:
    """`hydra.compose` as plain containers; whole: resolved, and no value is missing. Raises
    ConfigError with Hydra's words and the nearest known names."""
    chosen = [one for one in overrides if key_of(one) in groups() and not one.startswith("~")]
    for one in chosen:
        group, _, option = one.partition("=")
        if option in ("", "null"):
            raise ConfigError(
                f"expected {group}=NAME, found {one!r} (`python -m bench list {key_of(one)}` shows "
                "the names)"
            )
    # Hydra knows `++` of settings alone.
    overrides = [one.removeprefix("++") if one in chosen else one for one in overrides]
    try:
        config = compose(name, overrides=[*overrides, *WITHOUT_HYDRA_GROUPS])
        for group in ("study", "decoder"):  # their options are of the whole configuration
            if isinstance(config.get(group), DictConfig):
                option = next((one for one in chosen if key_of(one) == group), f"{group}=NAME")
                raise ConfigError(
                    f"{option}: its YAML must begin with the line `# @package _global_`, without "
                    f"which its settings are not those of a {group}; add it as the first line"
                )
        values: Any = OmegaConf.to_container(config, resolve=whole, throw_on_missing=whole)
        return dict(values)
    except MissingConfigException as error:
        group, _, option = str(error.missing_cfg_file).partition("/")  # which may be a path
        if not option or error.options is None:
            raise ConfigError(str(error)) from error
        hint = ""
        if "/" in option or Path(option).suffix:
            hint = f". A path is given as {group}.path={option}{nearest(f'{group}.path', ())}"
        elif SEARCHPATH_KEY not in map(key_of, overrides):
            hint = (
                f". Your own {group}/{option}.yaml is found with {SEARCHPATH_KEY}=[file:///DIR], "
                f"where DIR holds the folder {group}"
            )
        raise ConfigError(unknown(group, option, error.options) + hint) from error
    except ConfigCompositionException as error:
        match = re.match(r"Could not override '([^']+)'", str(error))
        if not match:
            raise ConfigError(
                f"{error}; expected a value of the kind that `python -m bench list settings` shows "
                "there. Settings of a group are set one by one, as in quality.images=8"
            ) from error
        others = [one for one in overrides if key_of(one) != match[1]]
        known = dotted(compose_config(name, others, whole=False))
        raise ConfigError(f"unknown setting {match[1]!r}{nearest(match[1], known)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"a YAML file that {' '.join(overrides) or name} reads is damaged: {error}"
        ) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: of model=3
        for one in chosen:
            if isinstance(values_of(one)[one], int | float):
                quoted = '="'.join(one.split("=", 1))
                raise ConfigError(f"{one}: as a name it is written '{quoted}\"'") from error
        key, reason = getattr(error, "full_key", None), str(error).partition("\n")[0]
        hint = f"{key}: {reason}; set it with {key}=VALUE" if key else f"{name}: {error}"
        raise ConfigError(hint) from error


def nearest(key: str, known: Iterable[str]) -> str:
    """What to write in place of an unknown setting: the options of its group that have it, else the
    nearest known names; and where all are shown."""
    group, _, setting = key.partition(".")
    options = groups().get(group, {})
    having = [
        o for o, text in options.items() if setting and setting in (yaml.safe_load(text) or ())
    ]
    hint = f"; to set it, add {' or '.join(f'{group}={option}' for option in having)}"
    if group in ("rule", "verifier"):
        hint = "; rules and verifiers are chosen by acceptance=NAME"
    elif not having:
        hint = did_you_mean(key, known)
    listed = f"{group}=NAME" if setting and options else "settings"
    return f"{hint} (`python -m bench list {listed}` shows all)"


def dotted(config: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Names of all groups and settings, as in acceptance.delta."""
    for key, value in config.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{key}.")
