"""Words of a command line, `key=value`, and the settings of commands that have no study.

What belongs to a study is Hydra's (`bench.config.hydra_edge`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench.data.errors import ConfigError

T = TypeVar("T")


class Word(NamedTuple):
    """key: the name without Hydra's + and ~ in front; value None: there is no `=`."""

    key: str
    value: str | None

    @property
    def group(self) -> str:
        """The first name of the key: `tree` of tree=chain and of ~tree.depth."""
        return self.key.partition(".")[0]


def split(text: str) -> Word:
    """One word taken apart."""
    key, equals, value = text.partition("=")
    return Word(key.lstrip("+~"), value if equals else None)


def settings(cls: type[T], words: Sequence[str]) -> T:
    """The settings of a command, a dataclass, from its words; `weights.clip=FILE` is a field of the
    dataclass in the field `weights`. Raises ConfigError on one without a value or given twice,
    DecoderError on an unknown name (with the nearest known ones) and a value of another kind."""
    from decoders.kinds import fitted

    given: dict[str, Any] = {}
    for key, equals, value in (word.partition("=") for word in words):
        *above, name = key.split(".")
        inside = given
        for group in above:
            inside = inside.setdefault(group, {}) if isinstance(inside, dict) else inside
        if not value:
            raise ConfigError(f"expected {key}=VALUE, found {key + equals!r}")
        if not isinstance(inside, dict) or name in inside:
            raise ConfigError(f"{key} is given twice")
        inside[name] = value
    result: T = fitted("", given, cls, text=True)
    return result


def divided(cls: type[T], words: Sequence[str]) -> tuple[T, list[str]]:
    """(the settings of a command that no study has, the words of the study)."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    mine = [word for word in words if split(word).group in names]
    return settings(cls, mine), [word for word in words if word not in mine]


def folders(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """(the folders: words without `=`, the other words)."""
    named = [Path(word) for word in words if split(word).value is None]
    return named, [word for word in words if split(word).value is not None]


def pairs(text: str) -> dict[str, str]:
    """`k=5, residual=paper` as a mapping; a bare word is a setting of itself."""
    found = (split(word.strip()) for word in text.split(",") if word.strip())
    return {word.key: word.value or word.key for word in found}


def word_at_home(word: str) -> str:
    """A word with `~` at the beginning of its value written out: the shell sees none behind a `=`,
    and Hydra's grammar has none."""
    return re.sub(r"(=[\"']?)~(?=/|$)", lambda found: found[1] + str(Path.home()), word)
