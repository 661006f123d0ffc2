"""A static tree whose children are drawn with the target's Gumbel rows (METHODS2 (c)).

The codes of largest log q + g are a draw from q without replacement, in their order. With the row g
that the target draws its own code with (`decoders.verify.gumbel`), drafter and target choose the
same code with probability at least (1 - TV) / (1 + TV). The row is independent of all uniforms, so
the tree suits every other verifier too.
"""

from __future__ import annotations

from torch import Tensor

from decoders.noise import Noise
from decoders.propose.trees.static import Static


class GumbelStatic(Static):
    """choices: as of `Static`."""

    def __str__(self) -> str:
        return f"gumbel {super().__str__()}"

    def draw(self, dist: Tensor, count: int, noise: Noise, places: Tensor) -> Tensor:
        gumbel = noise.gumbel(places, dist.shape[-1])[:, None]  # [B, 1, V]
        return (dist.log() + gumbel).topk(count, -1).indices
