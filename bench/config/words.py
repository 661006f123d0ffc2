"""Words of a command line, `key=value`: the one place that takes them apart.

Why not Hydra's grammar everywhere: commands without a study (compare, diff, evaluate) have plain
settings, and which words are a command's own must be known before Hydra reads the others. What
Hydra reads is parsed by `bench.config.hydra_edge.parse_override`, which starts here too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.data.errors import ConfigError, unknown


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


def given(words: Sequence[str], known: Collection[str], command: str) -> dict[str, str]:
    """The settings of a command that has no others. ConfigError on an unknown name (with the
    nearest known ones), one without a value and one that is given twice."""
    found: dict[str, str] = {}
    for word in map(split, words):
        if word.key not in known or not word.text.startswith(word.key):
            how = "; write key=value" if word.value is None else ""
            raise ConfigError(unknown(f"setting of {command}", word.key, known) + how)
        if not word.value:
            raise ConfigError(f"expected {word.key}=VALUE, found {word.text!r}")
        if word.key in found:
            raise ConfigError(f"{word.key} is given twice")
        found[word.key] = word.value
    return found


def with_folders(
    words: Sequence[str], known: Collection[str], command: str
) -> tuple[list[Path], dict[str, str]]:
    """(the folders, the settings) of a command whose words are both; see `given`."""
    folders = [Path(word).expanduser() for word in words if split(word).value is None]
    return folders, given([w for w in words if split(w).value is not None], known, command)


def apart(words: Sequence[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """(the words whose key is in `own`, the others)."""
    mine = [word for word in words if split(word).key in own]
    return mine, [word for word in words if word not in mine]


def fraction(key: str, text: str, example: str) -> float:
    """The value of a setting from 0 to less than 1. example: what one of them means."""
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{key} must be a number, found {text!r}") from error
    if not 0 <= value < 1:  # NaN neither
        raise ConfigError(f"{key} lies between 0 and 1, found {text}; {example}")
    return value


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
