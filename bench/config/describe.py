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
    specs = {"loop": spec.loop, "drafter": spec.proposer or spec.drafter, "tree": spec.tree}
    texts = {name: label(part) for name, part in (specs | {"acceptance": spec.acceptance}).items()}
    if built is not None:
        parts = {"loop": built, "drafter": built.drafter, "tree": built.tree}
        for name, part in (parts | {"acceptance": built.rule}).items():
            if part is not None and type(part).__str__ is not object.__str__:
                texts[name] = str(part)
    return texts


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
