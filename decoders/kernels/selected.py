"""The attention of a target's steps: one implementation by name, or the fastest of each shape.

`auto` measures a shape when it is first met, which is in a decoder's warm-up images, before its
step is recorded; what was measured is kept for the run's folder.
"""

from __future__ import annotations

from typing import Any

from decoders.kernels.candidates import AttentionShape, Implementation, implementation
from decoders.kernels.choose import Choice, choose


class Kernels:
    """`name`: `auto`, or an implementation of `decoders.kernels.candidates`. Raises DecoderError
    on another name."""

    def __init__(self, name: str = "auto") -> None:
        self.fixed: Implementation | None = None if name == "auto" else implementation(name)
        self.choices: dict[AttentionShape, Choice] = {}

    def of(self, shape: AttentionShape) -> Implementation:
        """What runs this shape."""
        if self.fixed is not None:
            return self.fixed
        if shape not in self.choices:
            self.choices[shape] = choose(shape)
        return implementation(self.choices[shape].name)

    def record(self) -> list[dict[str, Any]]:
        """Everything that was measured, as plain values."""
        return [choice.record() for choice in self.choices.values()]
