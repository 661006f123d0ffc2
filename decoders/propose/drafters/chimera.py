"""Chimera's n-gram drafter (2402.15758): three codes and the target's state say the next one.

The codes' embeddings, the target's, go through a residual block and a matrix, 3 D -> D: that is t.
The feature is at first the target's state that predicted the root, then the drafter's own:
f' = f + W2 silu(W1 [f ; t]). The head is a matrix on [f' ; t] that starts as the target's, twice.
The state has read everything, so the paper's layer over all states is left out.

The paper's three codes are the last ones. On a raster the nearest are left, above and above-left,
which foresee more (docs/results.md).
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
from decoders.propose.drafters.common.sessions import Session
from decoders.training.states import Drafted, States


class ChimeraNet(DraftHead, nn.Module):
    """The trained part, for a target of width D and V codes. Code V: none, embedded as zeros."""

    barred: Tensor | None

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        target = transformer_of(model)
        self.config, self.columns = target.config, target.grid()[1]
        width, vocab = target.width, target.vocab_size
        self.vocab = vocab
        self.block = nn.Linear(3 * width, 3 * width)
        self.trigram = nn.Linear(3 * width, width)
        self.inner = nn.Linear(2 * width, 2 * width)
        self.outer = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(2 * width, vocab, bias=False)
        self.register_buffer("barred", target.barred, persistent=False)
        with torch.no_grad():
            self.outer.weight.mul_(0.1)
            self.head.weight.copy_(target.output.weight.repeat(1, 2))

    def codes_above(self, image: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """The codes above and above-left of `positions` [B, w] in image [B, >= L] -> [B, w, 2]. V
        where that is outside the image, or behind `last` [B, 1], the last committed position."""
        above = positions - self.columns  # [B, w]
        at = torch.stack([above, above - 1], -1)  # [B, w, 2]
        inside = (above >= 0) & (above <= last)
        inside = torch.stack([inside, inside & (positions % self.columns > 0)], -1)
        index = at.clamp(0, image.shape[1] - 1).flatten(1)
        return torch.where(inside, image.gather(1, index).view_as(at), self.vocab)

    def encode(self, context: Tensor, target: Any) -> Tensor:
        """Three codes [..., 3], embedded as the target does -> t [..., D]."""
        there = context < self.vocab
        codes = target.embed(torch.where(there, context, 0)).float() * there[..., None]
        x = codes.flatten(-2)  # [..., 3 D]
        return self.trigram(x + F.silu(self.block(x)))

    def step(self, features: Tensor, t: Tensor) -> Tensor:
        """features, t [R, w, D] -> the next features [R, w, D]."""
        inner = self.inner(torch.cat([features, t], -1))
        return features + self.outer(F.silu(inner))

    def logits(self, both: Tensor) -> Tensor:
        """[..., 2 D], features and t -> [..., V]."""
        return self.head(both.to(self.head.weight.dtype))


class ChimeraSession(Session):
    """What it keeps of the images are their codes by position, and of every node its feature."""

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        device, batch = prefill.first.device, prefill.batch
        rows, _, width = prefill.hidden.shape
        size = self.net.config.length + self.max_new
        self.image = torch.zeros(batch, size, dtype=torch.long, device=device)
        self.features = torch.zeros(rows, nodes + 1, width, device=device)
        self.span = torch.arange(size, device=device)
        self.position = torch.zeros(batch, 1, dtype=torch.long, device=device)  # of the root

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        last = self.root(codes, count)  # [B, 1]
        self.image.scatter_(1, position[:, None] + self.span[: codes.shape[1]], codes)
        self.position.copy_(position[:, None] + last)
        state = take(hidden, last.repeat(self.copies, 1)).float()  # [R, 1, D]
        return self._draft(state, self.root_code[:, None], self.span[:1], 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        state = take(self.features, parents.repeat(self.copies, 1))  # [R, w, D]
        return self._draft(state, codes, nodes, depth)

    def _draft(self, state: Tensor, codes: Tensor, nodes: Tensor, depth: int) -> Tensor:
        """Guided logits [B, w, V] behind nodes of one depth with the codes [B, w]. state [R, w, D]:
        the feature above."""
        net, positions = (
            self.net,
            (self.position + depth + 1).expand_as(codes),
        )  # of what is predicted
        context = torch.cat(
            [codes[..., None], net.codes_above(self.image, positions, self.position)], -1
        )
        t = net.encode(context, self.target).repeat(self.copies, 1, 1)  # [R, w, D]
        features = net.step(state, t)
        self.features.index_copy_(1, nodes, features)
        return code_logits(net, torch.cat([features, t], -1), self.cfg, positions)


class Chimera(TrainedDrafter):
    session, untrained = ChimeraSession, ChimeraNet


class ChimeraLearner(NetLearner):
    """Trains the net: a deeper draft reads the feature that was drafted one depth above."""

    untrained = ChimeraNet

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, codes, read = self.net, states.codes, self.read(states)  # [R, L]
        features, drafted = read[:, self.start : -1], []  # of the roots of depth 1
        for d, at in enumerate(self.levels(states, roots, depth), 1):
            positions = at + d  # [m], of what is predicted
            rows = positions.expand(len(codes), -1)
            above = net.codes_above(codes, rows, at.expand_as(rows))
            context = torch.cat([codes[:, positions - 1, None], above], -1)  # [R, m, 3]
            t = net.encode(context, self.target)  # [R, m, D]
            if d == 2:
                features = features[:, roots]
            features = net.step(features, t)  # [R, m, D]
            drafted.append(Drafted(positions, torch.cat([features, t], -1), net))
        return drafted
