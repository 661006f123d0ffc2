"""Medusa drafter (2401.10774): heads on the target's last state, one for every distance ahead.

Head d is a residual block and an output head of its own, W2 (SiLU(W1 h + b1) + h); it predicts the
code d positions behind the next one from the state h that predicted the root. Nothing is run
between depths: every node of a level gets the same logits, whatever its parent's code. The paper
starts with W1 = 0 and W2 = the target's head, so an untrained head drafts the target's own next
code.

This file is also the worked example of docs/adding.md: a net, a session, a part, a learner.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Prefill
from decoders.distribution import DraftHead, code_logits, take
from decoders.kinds import Within
from decoders.models.nets.transformer import transformer_of
from decoders.propose.drafters.common.drafter import NetLearner, TrainedDrafter
from decoders.propose.drafters.common.sessions import Session
from decoders.training.states import Drafted, States

Heads = Annotated[int, Within(1, 64)]


class Head(DraftHead, nn.Module):
    """One distance: D -> V. ``barred`` as in a target: where codes may not stand, if anywhere."""

    barred: Tensor | None

    def __init__(self, width: int, vocab: int, barred: Tensor | None) -> None:
        super().__init__()
        self.block = nn.Linear(width, width)
        self.output = nn.Linear(width, vocab, bias=False)
        self.register_buffer("barred", barred, persistent=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        hidden = hidden.to(self.output.weight.dtype)
        return self.output(F.silu(self.block(hidden)) + hidden)


class MedusaNet(nn.Module):
    """The trained part: `heads` heads for the codes at +2, +3, ... of the target's state."""

    def __init__(self, model: ImageModel, heads: int) -> None:
        super().__init__()
        target = transformer_of(model)
        each = [Head(target.width, target.vocab_size, target.barred) for _ in range(heads)]
        self.config, self.heads = target.config, nn.ModuleList(each)
        with torch.no_grad():
            for head in each:
                head.block.weight.zero_()
                head.block.bias.zero_()
                head.output.weight.copy_(target.output.weight)


class MedusaSession(Session):
    """What it keeps of the images is the root's state, [R, 1, D], and its position."""

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        self.position = torch.zeros_like(self.root_code)[:, None]  # [B, 1], of the root
        self.state = torch.zeros_like(prefill.hidden[:, :1])

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        last = self.root(codes, count)  # [B, 1], which of the codes is the root
        self.position.copy_(position[:, None] + last)
        self.state.copy_(take(hidden, self._rows(last)))
        return self._logits(0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        del nodes, parents  # a head knows the depth and nothing else
        return self._logits(depth).expand(-1, codes.shape[1], -1)  # [B, w, V]

    def _logits(self, depth: int) -> Tensor:
        """Guided logits [B, 1, V] of the codes behind nodes of one depth."""
        head = self.net.heads[depth]
        return code_logits(head, self.state, self.cfg, self.position + depth + 1)


class Medusa(TrainedDrafter):
    """The drafter as a part. checkpoint: a folder that `bench train drafter=medusa` wrote with as
    many `heads`; null: untrained heads."""

    session, dtype, levels_setting = MedusaSession, None, "drafter.heads"

    def __init__(self, model: ImageModel, checkpoint: str | None = None, heads: Heads = 5) -> None:
        self.untrained, self.most_levels = partial(MedusaNet, heads=heads), heads
        super().__init__(model, checkpoint)

    def __str__(self) -> str:
        return f"medusa({self.most_levels} heads)"


class MedusaLearner(NetLearner):
    """Trains the heads (`decoders.training.states.Learner`): a head's drafts along known codes are
    its logits on the true states, whatever the depth."""

    def __init__(self, model: ImageModel, checkpoint: str | None = None, heads: Heads = 5) -> None:
        self.untrained, self.heads = partial(MedusaNet, heads=heads), heads
        super().__init__(model, checkpoint)

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        length, read = states.codes.shape[1], self.read(states)
        every = torch.arange(length - 1, device=read.device)  # all roots cost little
        drafted = []
        for d in range(min(depth, self.heads)):
            at = every[: length - 1 - d]  # roots whose draft at this depth is in the image
            hidden = read[:, self.start + at]  # [R, m, D], the states that predicted the roots
            drafted.append(Drafted(at + d + 1, hidden, self.net.heads[d]))
        return drafted
