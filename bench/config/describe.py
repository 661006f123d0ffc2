"""The parts of a decoder as text: the one description that rows, tables and errors use.

A built part is described in its own words (its `__str__`), one that was not built, or has none,
from its configuration: `lantern(k=100, delta=0.2, residual=paper)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.config.words import pairs

if TYPE_CHECKING:
    from decoders.api import Decoder
    from decoders.compose import DecoderSpec, PartSpec

PARTS = ("loop", "proposer", "drafter", "tree", "acceptance")  # of a decoder, as in its YAML
LONG = 8  # items of a list that are written out


def labels(spec: DecoderSpec, built: Decoder | None) -> dict[str, str]:
    """loop, drafter, tree, acceptance as rows hold them; a proposer takes the drafter's place."""
    parts: dict[str, Any] = dict.fromkeys(("loop", "drafter", "tree", "acceptance"))
    if built is not None:
        parts = {
            "loop": built,
            "drafter": built.drafter,
            "tree": built.tree,
            "acceptance": built.rule,
        }
    asked = {name: getattr(spec, name) for name in parts}
    asked["drafter"] = spec.proposer or spec.drafter
    return {name: own_words(part, label(asked[name])) for name, part in parts.items()}


def own_words(built: Any, otherwise: str) -> str:
    """What a built part says of itself; `otherwise` where it says nothing."""
    says: Any = type(built).__str__
    return str(built) if built is not None and says is not object.__str__ else otherwise


def label(part: PartSpec | None) -> str:
    """A part from its configuration; "none"."""
    if part is None:
        return "none"
    name = re.split(r"[.:]", part.target)[-1]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    values = ", ".join(f"{key}={_short(value)}" for key, value in part.kwargs.items())
    return f"{snake}({values})" if values else snake


def _short(value: Any) -> str:
    """A keyword's value; a long list (a tree's nodes) by its length."""
    long = isinstance(value, list | tuple) and len(value) > LONG
    return f"[{len(value)} items]" if long else str(value)


@dataclass(frozen=True)
class Described:
    """A description taken apart; a bare word is a setting of itself
    (`static(naive_extend_57, nodes=57)`)."""

    name: str
    settings: Mapping[str, str]

    def number(self, key: str) -> float | None:
        """A numerical setting, None where it is absent or a word."""
        try:
            return float(self.settings[key])
        except (KeyError, ValueError):
            return None


def read(text: str) -> Described:
    """From a cell of summary.csv; "" is the part called none."""
    found = re.fullmatch(r"([^(]*)(?:\((.*)\))?", text.strip(), re.DOTALL)
    if found is None:
        return Described(text, {})
    return Described(found[1].strip() or "none", pairs(found[2] or ""))
