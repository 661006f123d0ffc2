"""Words of a command line, `key=value`, and the settings of commands that have no study.

What belongs to a study is Hydra's (`bench.config.hydra_edge`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.data.errors import ConfigError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Word:
    """key: the name without Hydra's + and ~ in front; value None: there is no `=`."""

    text: str
    key: str
    value: str | None

    @property
    def group(self) -> str:
        """The first name of the key: `tree` of tree=chain and of ~tree.depth."""
        return self.key.partition(".")[0]


def split(text: str) -> Word:
    """One word taken apart."""
    key, equals, value = text.partition("=")
    return Word(text, key.lstrip("+~"), value if equals else None)


def settings(cls: type[T], words: Sequence[str], command: str) -> T:
    """The settings of a command, a dataclass, from its words; `weights.clip=FILE` is a field of the
    dataclass in the field `weights`. ConfigError on an unknown name (with the nearest known ones),
    one without a value, one that is given twice, and a value of another kind."""
    from pydantic import TypeAdapter, ValidationError

    from decoders.kinds import message

    known, given = [*_names(cls)], dict[str, Any]()
    for word in map(split, words):
        if word.key not in known or not word.text.startswith(word.key):
            how = "; write key=value" if word.value is None else ""
            raise ConfigError(unknown(f"setting of {command}", word.key, known) + how)
        if not word.value:
            raise ConfigError(f"expected {word.key}=VALUE, found {word.text!r}")
        *above, name = word.key.split(".")
        inside = given.setdefault(above[0], {}) if above else given
        if name in inside:
            raise ConfigError(f"{word.key} is given twice")
        inside[name] = word.value
    try:
        return TypeAdapter(cls).validate_strings(given)
    except ValidationError as error:
        raise ConfigError(message("", given, error)) from error


def _names(cls: Any) -> Iterator[str]:
    """Of all settings, as in weights.clip."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kinds = (hints[field.name], *typing.get_args(hints[field.name]))
        inner = next(filter(dataclasses.is_dataclass, kinds), None)
        if inner:
            yield from (f"{field.name}.{name}" for name in _names(inner))
        else:
            yield field.name


def folders(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """(the folders: words without `=`, the other words)."""
    named = [Path(word).expanduser() for word in words if split(word).value is None]
    return named, [word for word in words if split(word).value is not None]


def apart(words: Sequence[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """(the words whose group is in `own`, the others)."""
    mine = [word for word in words if split(word).group in own]
    return mine, [word for word in words if word not in mine]


def pairs(text: str) -> dict[str, str]:
    """`k=5, residual=paper` as a mapping; a bare word is a setting of itself."""
    found = (split(word.strip()) for word in text.split(",") if word.strip())
    return {word.key: word.value or word.key for word in found}


def at_home(value: str) -> str:
    """A value with `~/` written out, as the shell does where it sees one: it sees none behind a
    `=`, and Hydra's grammar has no `~` in a value."""
    return str(Path(value).expanduser()) if value == "~" or value[:2] == "~/" else value


def word_at_home(text: str) -> str:
    """A word with the home folder in its value written out."""
    key, equals, value = text.partition("=")
    return key + equals + at_home(value)
