"""Settings of one command (`peers.prompts=8`), told apart from those of its study.

Why: a command that measures something else than rows has a few settings of its own, which no study
should carry. They are read with Hydra's own grammar and checked as strictly: an unknown name is
answered with the nearest known ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from bench.config.hydra_edge import parse_override
from bench.config.schema import build
from bench.config.words import split
from bench.errors import ConfigError

T = TypeVar("T")


def own_settings(cls: type[T], group: str, words: Sequence[str]) -> tuple[T, list[str]]:
    """The dataclass `cls` from the words `group.name=value`, and the other words.

    Raises ConfigError on an unknown name, a value of another type and what `cls` itself refuses.
    """
    found: dict[str, Any] = {}
    rest = []
    for word in words:
        name = split(word).key
        if split(word).group == group:
            override = parse_override(word)
            if name == group:
                raise ConfigError(f"{word!r}: set one of {group}.NAME=..., for example {group}."
                                  f"{next(iter(cls.__annotations__))}=...")  # fmt: skip
            found[name.removeprefix(f"{group}.")] = override.value()
        else:
            rest.append(word)
    return build(cls, found, group), rest


def with_study(words: Sequence[str], study: str) -> list[str]:
    """The words, with `study=` in front where they name none."""
    named = any(split(word).key == "study" for word in words)
    return list(words) if named else [f"study={study}", *words]
