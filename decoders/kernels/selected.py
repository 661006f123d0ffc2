"""The attention of a target's steps: one implementation by name, or the fastest of each shape.

`auto` measures a shape when it is first met, which is in a decoder's warm-up images, before its
step is recorded; what was measured is kept for the run's folder.
"""

from __future__ import annotations

from dataclasses import replace
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
        self._made: dict[tuple[int, int, int, int, int], Implementation] = {}

    def of(self, shape: AttentionShape, most: int, layers: int) -> Implementation:
        """What runs this shape, and the same with other slots, in a target of `layers` layers;
        chosen for `most` slots. Raises DecoderError where the one asked for cannot run it."""
        # A compiler can look this up.
        key = (shape.rows, shape.queries, shape.heads, shape.group, shape.head_dim)
        if key not in self._made:
            self._made[key] = self._chosen(replace(shape, slots=most), layers)
        return self._made[key]

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
