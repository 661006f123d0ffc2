"""The errors of `decoders`, and the nearest known names for an unknown one. Imports nothing heavy:
the command line names these errors before torch is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class DecoderError(ValueError):
    """An input that cannot be used: says what was expected, what was found and what to do."""


class NumericalError(DecoderError):
    """NaN or infinity where logits or probabilities were expected."""


class RefillError(DecoderError):
    """A part whose state cannot begin another image in the row of a finished one."""


def did_you_mean(name: str, options: Iterable[Any]) -> str:
    """`; did you mean 'x' or 'y'?` of the nearest known names; "" where none is near. Of dotted
    names the last parts must be near: settings of one group begin alike."""
    near = [k for k in map(str, options) if difflib.get_close_matches(_last(name), [_last(k)])]
    close = difflib.get_close_matches(str(name), near, n=3, cutoff=0)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _last(name: str) -> str:
    part = str(name).rpartition(".")[2]
    return part if part.isidentifier() else str(name)


def unknown(what: str, name: str, options: Iterable[str]) -> str:
    """A message about an unknown name: the nearest ones first, then all of them."""
    names = sorted(options)
    hint = did_you_mean(name, names) or "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(names) or '(none)'}"
