"""What a decoder is made of, as a configuration says it. Imports nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decoders.errors import DecoderError
from decoders.kinds import validate

if TYPE_CHECKING:
    from decoders.api import Decoder

PARTS = ("loop", "proposer", "drafter", "tree", "acceptance")  # of a decoder, as in its YAML
LONG_LIST = 8  # items of a list that are written out


@dataclass(frozen=True)
class PartSpec:
    """A class by its dotted path (``package.module.Class`` or ``package.module:Class``), its
    keywords."""

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any, where: str) -> PartSpec | None:
        """From a group's {_target_, keywords...}; None where `_target_` is null. where: its name in
        messages. Raises DecoderError."""
        kwargs = dict(validate(where, values, dict[str, Any]))
        if "_target_" not in kwargs:
            raise DecoderError(
                f"{where} has no `_target_`, which names the class, as in `_target_: module.Class`;"
                f" found {', '.join(kwargs)}"
            )
        target = validate(f"{where}._target_", kwargs.pop("_target_"), str | None)
        return None if target is None else cls(target, kwargs)

    def __str__(self) -> str:
        """`lantern(k=100, delta=0.2, residual=paper)`; of a long list (a tree's nodes) the
        length."""
        name = re.split(r"[.:]", self.target)[-1]
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        long = {
            k for k, v in self.kwargs.items() if isinstance(v, list | tuple) and len(v) > LONG_LIST
        }
        values = {k: f"[{len(v)} items]" if k in long else v for k, v in self.kwargs.items()}
        text = ", ".join(f"{key}={value}" for key, value in values.items())
        return f"{snake}({text})" if text else snake


EXACT_RULE = PartSpec("decoders.verify.exact.Exact")  # it keeps the target's probabilities


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
        every = (getattr(self, name) for name in PARTS)
        return [part for part in every if part is not None]

    def labels(self, built: Decoder | None) -> dict[str, str]:
        """loop, drafter (or proposer), tree and acceptance as rows, tables and errors name them. A
        built part says its label itself (`__str__`); else it is that of its configuration."""
        labels = {
            "loop": str(self.loop),
            "drafter": str(self.proposer or self.drafter or "none"),
            "tree": str(self.tree or "none"),
            "acceptance": str(self.acceptance or "none"),
        }
        parts = () if built is None else (built, built.drafter, built.tree, built.rule)
        for name, part in zip(labels, parts, strict=False):
            if part is not None and type(part).__str__ is not object.__str__:
                labels[name] = str(part)
        return labels
