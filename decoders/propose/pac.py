"""SJD-PAC: proactive drafting, adaptive continuation (2603.18599, decoders.md (d)).

The first levels of the window hold K candidates each, shared by all nodes of the level above; a
chain of first candidates follows. The first candidate is coupled to the new distribution p
(SCD-MC). The others are drawn from p without it, without replacement. So all K are an exact draw
without replacement from p, which is declared; the walk takes the first accepted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.distribution import drop_sibling, largest, without
from decoders.kinds import Within
from decoders.noise import COUPLE_SLOT, MAX_CHILDREN, sample
from decoders.propose.maximal import Maximal
from decoders.propose.window import Codes, OldWindow, step_uniforms


@dataclass(eq=False, repr=False)
class Pac(Maximal):
    """window: codes of a forward, the tree with them: 64 with K = 4 is a main path of 46.
    candidates: K; levels: how many levels hold K of them (the paper's D is one more)."""

    window: Codes = 64
    candidates: Annotated[int, Within(1, MAX_CHILDREN)] = 4
    levels: Annotated[int, Within(0, 6)] = 2

    def __post_init__(self, model: Any) -> None:
        if self.candidates**self.levels > 4096:
            raise DecoderError(
                f"proposer.candidates={self.candidates} on proposer.levels={self.levels} is a tree "
                f"of {self.candidates**self.levels} rows: at most 4096; lower one of the two"
            )
        super().__post_init__(model)

    def __str__(self) -> str:
        shape = f"window={self.nodes + 1}, candidates={self.candidates}, levels={self.levels}"
        return f"pac({shape})"

    def siblings(
        self, codes: Tensor, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor
    ) -> Tensor:
        """See `Window`. Levels of the chain repeat their first candidate, which is not read."""
        if self.candidates == 1 or self.levels == 0:
            return codes[..., None]
        upper = slice(0, self.levels)
        main, probs, count = codes[:, upper], probs[:, upper], self.candidates - 1
        wide = codes[..., None].repeat(1, 1, self.candidates)  # [B, W, K]
        if old.greedy:
            probs = torch.where(old.has_probs[:, upper, None], old.p[:, upper], probs)
            mass, best = largest(without(probs, main), count)  # [B, levels, K - 1]
            wide[:, upper, 1:] = torch.where(mass > 0, best, main[..., None])  # 0: may not be there
            return wide
        u = step_uniforms(noise, positions[:, upper], COUPLE_SLOT + 1, count)  # [B, levels, K - 1]
        drawn = [main]
        for j in range(count):
            probs = drop_sibling(probs, drawn[-1])
            drawn.append(sample(probs, u[..., j]))
        wide[:, upper] = torch.stack(drawn, -1)
        return wide
