"""Bit-exact acceptance (decoders.md (c)): the codes are those of AR under the same noise, one by
one, while sampling.

At every node the code is the one that AR would draw there: argmax(log p + g), g the place's row of
Gumbel numbers. A child that equals it is accepted; the first place where none does gets the code
itself. So the output does not depend on drafter, tree, batch or shard, in float32 and up to ties.
Drafts that are drawn with the same rows are accepted with probability at least (1 - TV) / (1 + TV),
others with sum p q only. `draw: uniform` compares with the draw of the plain AR row.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from decoders.api import Draft, Law, Settled, Verifier
from decoders.noise import TARGET_SLOT, sample
from decoders.verify.by_node import settled
from decoders.verify.children import at_node, children_of, walk


def drawn(p: Tensor, gumbel: Tensor) -> Tensor:
    """The code drawn from p [..., V] with a row of Gumbel numbers -> [...] int64."""
    return (p.log() + gumbel).argmax(-1)


class Gumbel(Verifier):
    """draw: gumbel, equal to `decoders.loops.gumbel` (`decoder=ar_gumbel`); or uniform, equal to
    plain AR."""

    def __init__(self, model: Any = None, draw: Literal["gumbel", "uniform"] = "gumbel") -> None:
        del model  # it needs nothing from it
        self.draw = draw

    def __str__(self) -> str:
        return "gumbel" if self.draw == "gumbel" else "same draw"

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`."""
        wanted = self.wanted(law, draft, noise, place)  # [B, N + 1]
        codes, valid = children_of(draft)  # [B, N + 1, K]
        path = walk(draft, (codes == wanted[..., None]) & valid, draft.levels)
        last = wanted.gather(1, path.last[:, None])[:, 0]  # [B]
        bonus = ~at_node(valid, path.last).any(-1)
        return settled(path.nodes, path.count, last, bonus)

    def wanted(self, law: Law, draft: Draft, noise: Any, place: Tensor) -> Tensor:
        """What AR would draw after every node, [B, N + 1]."""
        if law.greedy:
            return law.logits.argmax(-1)
        if self.draw == "uniform":
            return sample(law.p, noise.at(place[:, None] + draft.depth, TARGET_SLOT)[..., 0])
        level = torch.arange(draft.levels + 1, device=place.device)
        rows = noise.gumbel(place[:, None] + level, law.p.shape[-1])  # [B, D + 1, V]
        index = draft.depth[..., None].expand_as(law.p)  # [B, N + 1, V]
        return drawn(law.p, rows.gather(1, index))
