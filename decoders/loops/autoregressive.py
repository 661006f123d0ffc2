"""The baseline: one target forward per code. As fast as the same model allows, nothing left slow.

Sampling reads the noise of (seed, prompt, position); temperature 0 is an argmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import CodeKind, Piece, TextFeatures
from decoders.distribution import code_logits
from decoders.loops.base_loop import BatchLoop, DecodeState, choose
from decoders.noise import TARGET_SLOT, Noise


@dataclass(kw_only=True)
class ARState(DecodeState):
    mask: Tensor  # [R, 1, S] bool, slots that the next query may look at
    codes: Tensor  # [B] int64, the code just chosen
    position: Tensor  # [1] int64, position of the code to choose next


class Autoregressive(BatchLoop):
    """Plain next-code decoding. All images are as long as each other, so all positions of a batch
    are free in the same step."""

    title = "the autoregressive loop"

    def pieces(self) -> Sequence[Piece]:
        return [("forward", self.next)]

    def begin(self, text: TextFeatures, noise: Noise, pairs: float = 0) -> ARState:
        """Prefill and the first code."""
        del pairs  # nothing is verified
        target = self.model.target
        prefill, shared = self.prefilled(text, noise, 1)
        trace = shared["trace"]
        trace.accepted[:, : target.length - 1] = 0
        steps = torch.arange(target.length, device=trace.codes.device)
        trace.columns["step"][:, : target.length] = steps
        trace.columns["kind"].fill_(int(CodeKind.TARGET))
        valid = text.row_mask(self.sampling.guidance_rows)  # [R, P]
        mask = F.pad(valid, (0, self.slots - target.prefix))[:, None].contiguous()  # [R, 1, S]
        position = torch.ones(1, dtype=torch.long, device=self.model.device)
        return ARState(mask=mask, codes=prefill.first, position=position, **shared)

    def steps(self, state: ARState) -> Iterator[int]:
        yield from range(1, self.model.target.length)
        state.trace.steps.fill_(self.model.target.length - 1)

    def next(self, state: ARState) -> tuple[Tensor]:
        """The target on the last code, and the next code; returns its guided logits [B, V]."""
        logits = self.logits(state)
        self.commit(state, logits)
        return (logits,)

    def commit(self, state: ARState, logits: Tensor) -> None:
        """Chooses and commits the next code, by its guided logits [B, V]."""
        sampling, position = self.sampling, state.position
        u = state.noise.uniform[:, :, TARGET_SLOT].index_select(1, position)[:, 0]  # [B]
        codes, p = choose(logits, sampling, u)
        state.trace.check(p if sampling.greedy else p[:, :1])  # one NaN makes a softmax's row NaN
        state.trace.codes.index_copy_(1, position, codes[:, None])
        state.codes.copy_(codes)
        state.position.add_(1)

    def logits(self, state: ARState) -> Tensor:
        """The target on the last code -> guided logits of the next one, [B, V]."""
        target, copies, position = self.model.target, self.sampling.guidance_rows, state.position
        grid = (position - 1).expand(len(state.mask), 1)  # [R, 1]
        slots = grid + target.prefix
        state.mask.index_fill_(2, slots[0], True)
        hidden = target.forward_codes(
            state.codes.repeat(copies)[:, None], grid, slots, state.mask, state.cache
        )
        positions = position.expand(len(state.codes), 1)  # [B, 1]
        return code_logits(target, hidden, self.sampling.cfg, positions)[:, 0]
