"""Hawk's horizontal and vertical heads (2510.25739): a code is foreseen from its row and from the
row above it.

The horizontal head of distance d reads the target's state that predicted the root, and the root's
code, embedded as in the target. The vertical head reads the state that predicted the code
above-right of the position, and that code; it is run once when a code is committed, and its output
waits a row (``cached``). Their sum goes through a residual block and one matrix. All depths are one
forward: a node's distribution follows from its depth. That codes are read, and that the heads are
summed, are choices of this file.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Prefill
from decoders.distribution import DraftHead, code_logits, take
from decoders.models.nets.transformer import transformer_of
from decoders.propose.drafters.common.drafter import NetLearner, TrainedDrafter
from decoders.propose.drafters.common.sessions import DepthSession
from decoders.training.states import Drafted, States

DEPTHS = 6  # distances that have a head; the tree must not be deeper


class HawkNet(DraftHead, nn.Module):
    """The trained part, for a target of width D and V codes."""

    barred: Tensor | None

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        target = transformer_of(model)
        self.config, self.columns = target.config, target.grid()[1]
        width, vocab = target.width, target.vocab_size
        self.horizontal = nn.Linear(2 * width, DEPTHS * width)
        self.vertical = nn.Linear(2 * width, width, bias=False)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width, bias=False)
        self.output = nn.Linear(width, vocab, bias=False)
        self.register_buffer("barred", target.barred, persistent=False)
        with torch.no_grad():
            self.output.weight.copy_(target.output.weight)

    def ahead(self, state: Tensor, codes: Tensor) -> Tensor:
        """The root's state and its code's embedding [R, m, D] -> [R, m, DEPTHS, D]."""
        both = torch.cat([state.float(), codes.float()], -1)
        return self.horizontal(both).unflatten(-1, (DEPTHS, -1))

    def below(self, states: Tensor, codes: Tensor) -> Tensor:
        """States [R, m, D] that predicted codes, and these codes' embeddings -> what they say a row
        later, [R, m, D]."""
        return self.vertical(torch.cat([states.float(), codes.float()], -1))

    def combine(self, ahead: Tensor, below: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Both heads' outputs -> what the output matrix reads, [R, m, D]: `ahead` [R, m, D] for
        positions [R, m], and `below` [R, size, D] at their neighbours above-right. It is left out
        where that is outside the image or behind `last` [R, m], the last committed position."""
        at = positions - self.columns + 1  # [R, m]
        neighbour = take(below, at.clamp(0, below.shape[1] - 1))
        inside = ((at >= 0) & (at <= last))[..., None]
        x = ahead + torch.where(inside, neighbour, 0.0)
        return x + self.outer(F.silu(self.inner(x)))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return self.output(hidden.to(self.output.weight.dtype))


class HawkSession(DepthSession):
    """What it keeps of the images are the vertical head's outputs by position, and the logits of
    all depths behind the root."""

    depths = DEPTHS

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        super().allocate(prefill, nodes)
        rows, _, width = prefill.hidden.shape
        size = len(self.span)
        self.cached = torch.zeros(rows, size, width, device=prefill.hidden.device)  # [R, size, D]

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        net, copies, last = self.net, self.copies, self.root(codes, count)  # [B, 1]
        root, rows = position[:, None] + last, last.repeat(copies, 1)  # [B, 1], [R, 1]
        read = (position[:, None] + self.span[: codes.shape[1]]).repeat(
            copies, 1
        )  # [R, T], positions
        embed: Any = self.target.embed  # type: ignore[attr-defined]  # of a Transformer
        below = net.below(hidden, embed(codes.repeat(copies, 1)))  # [R, T, D]
        self.cached.scatter_(1, read[..., None].expand_as(below), below)
        code = self.root_code[:, None].repeat(copies, 1)  # [R, 1]
        ahead = net.ahead(take(hidden, rows), embed(code))[:, 0]  # [R, DEPTHS, D]
        positions = root + 1 + self.span[:DEPTHS]  # [B, DEPTHS]
        joined = net.combine(
            ahead, self.cached, positions.repeat(copies, 1), root.repeat(copies, 1)
        )
        self.logits.copy_(code_logits(net, joined, self.cfg, positions))
        return self.logits[:, 0]


class Hawk(TrainedDrafter):
    session, untrained = HawkSession, HawkNet
    most_levels, one_forward = DEPTHS, True


class HawkLearner(NetLearner):
    """Trains the heads."""

    untrained = HawkNet

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, codes = self.net, self.target.embed(states.codes)  # [R, L, D]
        read = self.read(states)[:, self.start :]  # [R, L, D], what predicted the codes
        below, drafted = net.below(read, codes), []
        for d, at in enumerate(self.levels(states, roots, min(depth, DEPTHS))):
            ahead = net.ahead(read[:, at], codes[:, at])[:, :, d]  # [R, m, D]
            rows = at.expand(len(codes), -1)
            joined = net.combine(ahead, below, rows + d + 1, rows)
            drafted.append(Drafted(at + d + 1, joined, net))
        return drafted
