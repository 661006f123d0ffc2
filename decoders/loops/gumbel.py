"""Plain next-code decoding, drawn with the Gumbel numbers of each place: argmax(log p + g).

The same law as `decoders.loops.autoregressive`, other noise. It is what every decoder with the
verifier `decoders.verify.gumbel` equals, code by code.
"""

from __future__ import annotations

from torch import Tensor

from decoders.distribution import probabilities
from decoders.loops.autoregressive import Autoregressive, Run
from decoders.verify.gumbel import drawn


class GumbelAutoregressive(Autoregressive):
    def draw(self, run: Run, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self.sampling.greedy:
            return super().draw(run, logits)
        p = probabilities(logits, self.sampling)  # [B, V]
        place = run.place.expand(len(p))
        return drawn(p, run.noise.gumbel(place, p.shape[-1])), p
