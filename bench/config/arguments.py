"""Arguments of a command line, `key=value`: the settings of commands that have no study, and the
groups of conf/ that arguments choose from.

Why without Hydra: `list`, `evaluate`, `compare` and `diff` need none. What belongs to a study is
composed by `bench.config.hydra_edge`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bench.errors import ConfigError

T = TypeVar("T")
RUNS = Path("results/runs")  # where runs go, each in the folder of its name


def key_of(argument: str) -> str:
    """The name in front of `=`, without Hydra's + and ~."""
    return argument.partition("=")[0].lstrip("+~")


def listed(text: str) -> list[str]:
    """The parts of `[a,b]` or `a,b`."""
    return [part.strip() for part in text.strip("[]").split(",")]


def settings(cls: type[T], arguments: Sequence[str]) -> T:
    """The settings of a command, a dataclass, from its arguments; `weights.clip=FILE` is a field of
    the dataclass in the field `weights`. Raises ConfigError on one without a value or given twice,
    DecoderError on an unknown name (with the nearest known ones) and a value of another kind."""
    from decoders.kinds import validate

    values: dict[str, Any] = {}
    for key, equals, value in (argument.partition("=") for argument in arguments):
        if not value:
            raise ConfigError(f"expected {key}=VALUE, found {key + equals!r}")
        group, _, name = key.rpartition(".")
        inside = values.setdefault(group, {}) if group else values
        if not isinstance(inside, dict) or name in inside:
            raise ConfigError(f"{key} is given twice")
        inside[name] = value
    result: T = validate("", values, cls, text=True)
    return result


def divided(cls: type[T], arguments: Sequence[str]) -> tuple[T, list[str]]:
    """(the settings of a command that no study has, the arguments of the study)."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    mine = [one for one in arguments if key_of(one).partition(".")[0] in names]
    return settings(cls, mine), [one for one in arguments if one not in mine]


def folders(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """(the folders: arguments without `=`, the other ones). Raises ConfigError on one that is named
    twice."""
    named = [Path(argument) for argument in arguments if "=" not in argument]
    places = [folder.resolve() for folder in named]
    for folder, place in zip(named, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"the folder {folder} is named twice; name each folder once")
    return named, [argument for argument in arguments if "=" in argument]


def at_home(argument: str) -> str:
    """An argument with `~` at the beginning of its value written out: the shell sees none behind a
    `=`, and Hydra's grammar has none."""
    return re.sub(r"(=[\"']?)~(?=/|$)", lambda match: match[1] + str(Path.home()), argument)


def groups_with(setting: str) -> list[str]:
    """The groups of conf/ that have an option with a setting of this name."""
    return [
        group
        for group, options in groups().items()
        if any(setting in (yaml.safe_load(text) or ()) for text in options.values())
    ]


def groups() -> dict[str, dict[str, str]]:
    """Group of conf/ -> option -> its YAML file, whose comments explain its settings."""
    texts = {}
    for folder in sorted(files("conf").iterdir(), key=lambda p: p.name):
        options = sorted(folder.iterdir(), key=lambda p: p.name) if folder.is_dir() else []
        texts[folder.name] = {
            p.name.removesuffix(".yaml"): p.read_text() for p in options if p.name.endswith(".yaml")
        }
    return {group: options for group, options in texts.items() if options}
