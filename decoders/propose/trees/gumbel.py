"""A static tree whose children are drawn with the target's Gumbel rows (decoders.md (c)).

The codes of largest log q + g are a draw from q without replacement, in their order. With the row g
that the target draws its own code with (`decoders.verify.gumbel`), drafter and target choose the
same code with probability at least (1 - TV) / (1 + TV). The row is independent of all uniforms, so
the tree also suits rules that judge node by node.
"""

from __future__ import annotations

from torch import Tensor

from decoders.api import DecoderError
from decoders.noise import Noise
from decoders.propose.trees.static import Level, Static


class GumbelStatic(Static):
    """choices: as of `Static`."""

    def __str__(self) -> str:
        return f"gumbel {super().__str__()}"

    def draw(self, dist: Tensor, level: Level, noise: Noise, place: Tensor) -> Tensor:
        if noise.renewed:
            raise DecoderError(
                "tree GumbelStatic draws with one row of numbers per place, and a verifier that "
                "looks ahead needs new ones in every step; use another tree or acceptance=exact"
            )
        gumbel = noise.gumbel(place, dist.shape[-1])[:, None]  # [B, 1, V]
        return (dist.log() + gumbel).topk(level.count, -1).indices
