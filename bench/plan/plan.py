"""The plan of a study as data: its parts, and how each of its decoders is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.plan.costs import BYTES, Load, Shape, VQShape, peak_bytes
from bench.plan.parts import Part

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig


@dataclass(frozen=True)
class Call:
    """How an entry is called in a protocol, latency or quality."""

    decoder: str
    protocol: str
    load: Load


@dataclass(frozen=True)
class Plan:
    """notes: what could not be told, and files that are not where they are expected."""

    config: StudyConfig
    shape: Shape | None
    vq: VQShape | None
    parts: list[Part]
    calls: list[Call]
    notes: list[str]

    @property
    def download(self) -> float:
        return sum(part.download or 0.0 for part in self.parts)

    @property
    def weights(self) -> float:
        """Bytes of all weights in memory."""
        return sum(part.loaded for part in self.parts)

    def memory(self, load: Load) -> float | None:
        """Peak bytes of a call, None where the model's shape is not known."""
        if self.shape is None:
            return None
        size = BYTES[self.config.backend.dtype]
        return peak_bytes(self.shape, self.vq, self.weights, load, size)
