"""What a decoder is made of, as a configuration says it. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PartSpec:
    """A class by its dotted path (``package.module.Class`` or ``package.module:Class``), its
    keywords."""

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DecoderSpec:
    """The parts of a decoder; None: it has none of this kind."""

    name: str
    loop: PartSpec
    drafter: PartSpec | None = None
    tree: PartSpec | None = None
    acceptance: PartSpec | None = None  # a rule, or a verifier
    proposer: PartSpec | None = None  # in the place of drafter and tree

    @property
    def parts(self) -> list[PartSpec]:
        """Those that it has."""
        every = (self.loop, self.proposer, self.drafter, self.tree, self.acceptance)
        return [part for part in every if part is not None]
