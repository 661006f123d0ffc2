"""Words of a command line, `key=value`, and the settings of commands that have no study.

What belongs to a study is Hydra's (`bench.config.hydra_edge`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.data.errors import ConfigError

T = TypeVar("T")


def key_of(word: str) -> str:
    """The name in front of `=`, without Hydra's + and ~."""
    return word.partition("=")[0].lstrip("+~")


def group_of(word: str) -> str:
    """The first name of the key: `tree` of tree=chain and of ~tree.depth."""
    return key_of(word).partition(".")[0]


def settings(cls: type[T], words: Sequence[str]) -> T:
    """The settings of a command, a dataclass, from its words; `weights.clip=FILE` is a field of the
    dataclass in the field `weights`. Raises ConfigError on one without a value or given twice,
    DecoderError on an unknown name (with the nearest known ones) and a value of another kind."""
    from decoders.kinds import validate

    values: dict[str, Any] = {}
    for key, equals, value in (word.partition("=") for word in words):
        if not value:
            raise ConfigError(f"expected {key}=VALUE, found {key + equals!r}")
        group, _, name = key.rpartition(".")
        inside = values.setdefault(group, {}) if group else values
        if not isinstance(inside, dict) or name in inside:
            raise ConfigError(f"{key} is given twice")
        inside[name] = value
    result: T = validate("", values, cls, text=True)
    return result


def divided(cls: type[T], words: Sequence[str]) -> tuple[T, list[str]]:
    """(the settings of a command that no study has, the words of the study)."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    mine = [word for word in words if group_of(word) in names]
    return settings(cls, mine), [word for word in words if word not in mine]


def folders(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """(the folders: words without `=`, the other words)."""
    named = [Path(word) for word in words if "=" not in word]
    return named, [word for word in words if "=" in word]


def pairs(text: str) -> dict[str, str]:
    """`k=5, residual=paper` as a mapping; a bare word is a setting of itself."""
    parts = (word.strip().partition("=") for word in text.split(",") if word.strip())
    return {key: value or key for key, _, value in parts}


def word_at_home(word: str) -> str:
    """A word with `~` at the beginning of its value written out: the shell sees none behind a `=`,
    and Hydra's grammar has none."""
    return re.sub(r"(=[\"']?)~(?=/|$)", lambda match: match[1] + str(Path.home()), word)
