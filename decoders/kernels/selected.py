"""The attention of a target's steps: one implementation by name, or the fastest of each shape.

`auto` measures a shape when it is first met, which is in a decoder's warm-up images, before its
step is recorded; what was measured is kept for the run's folder.
"""

from __future__ import annotations

from typing import Any

from decoders.api import DecoderError
from decoders.kernels.candidates import AttentionShape, Implementation, implementation
from decoders.kernels.choose import Choice, choose


class Kernels:
    """`name`: `auto`, or an implementation of `decoders.kernels.candidates`; `mode`: how a step
    will run them, see `choose`. Raises DecoderError on another name."""

    def __init__(self, name: str = "auto", mode: str | None = None) -> None:
        self.mode = mode
        self.fixed: Implementation | None = None if name == "auto" else implementation(name)
        self.choices: dict[AttentionShape, Choice] = {}
        self._made: dict[AttentionShape, Implementation] = {}

    def of(self, shape: AttentionShape, layers: int) -> Implementation:
        """What runs this shape in a target of `layers` layers. Raises DecoderError where the one
        asked for cannot run it."""
        if shape not in self._made:
            self._made[shape] = self._chosen(shape, layers)
        return self._made[shape]

    def _chosen(self, shape: AttentionShape, layers: int) -> Implementation:
        if self.fixed is None:
            # Half the slots are in use on average over an image's steps.
            used = max(shape.queries, shape.slots // 2)
            self.choices[shape] = choose(shape, layers=layers, used=used, mode=self.mode)
            return implementation(self.choices[shape].name)
        reason = self.fixed.reason(shape)
        if reason is not None:
            raise DecoderError(
                f"attention={self.fixed.name} cannot run {shape}: {reason}; use attention=auto"
            )
        return self.fixed

    def record(self) -> list[dict[str, Any]]:
        """Everything that was measured, as plain values."""
        return [choice.record() for choice in self.choices.values()]
