"""Falcon drafter (2412.12639): blocks of two codes, both drafted by one forward.

At the position of a code the net reads u = fc[embedding of the code ; feature that predicted it],
and x = u + h of an LSTM over the image's codes. The last two positions are a block in one decoder
layer whose attention is causal between blocks and open within one. The output of the first position
predicts the feature of the code behind the block, that of the second the next one; the target's
head makes distributions of both. So a distribution at an even depth does not depend on the draft
above it, only on those before: it is a function of the prefix, hence exact. A deeper block reads
the features that were drafted.

Choices of this file: one LSTM layer of the target's width (the paper has two), which starts anew in
every row of the image, so that rows are trained side by side; the prefix's positions are u alone;
embedding and head are the target's. Training is the unrolled one of the other drafters: a deeper
block reads drafted features everywhere, so glancing (CSGD, which puts true ones in the place of a
share of the wrong ones) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Prefill
from decoders.cache import GrowingCache, additive_mask
from decoders.distribution import take
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import prefix_mask, transformer_of
from decoders.propose.drafters.common.drafter import TrainedDrafter
from decoders.propose.drafters.common.eagle_learner import FeatureLearner
from decoders.propose.drafters.common.sessions import EagleSession
from decoders.training.states import Drafted, States


class FalconNet(EagleNet):
    """EAGLE's net with an LSTM before its layer, on the target's embedding. `memory`: h and c, one
    behind the other, [..., 2 D]."""

    table: Tensor  # [tokens, D], the target's embedding

    def __init__(self, config: TransformerConfig, table: Tensor) -> None:
        super().__init__(config)
        del self.embed_tokens
        self.columns = config.grid + config.row_end
        self.gates = nn.Linear(2 * config.width, 4 * config.width)
        self.register_buffer("table", table.detach(), persistent=False)

    def mix(self, ids: Tensor, features: Tensor) -> Tensor:
        both = torch.cat([F.embedding(ids, self.table).to(features.dtype), features], -1)
        return self.fc(both)

    def recur(self, u: Tensor, memory: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """A step of the LSTM at positions [...] of the image: u [..., D] -> x [..., D], memory."""
        first = (positions % self.columns == 0)[..., None]  # of its row
        h, c = torch.where(first, 0.0, memory).chunk(2, -1)
        in_, forget, new, out = self.gates(torch.cat([u, h], -1)).chunk(4, -1)
        c = forget.sigmoid() * c + in_.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        return u + h, torch.cat([h, c], -1)


class FalconSession(EagleSession):
    """Per node it keeps the two features that were drafted there and the LSTM's memory, [R, 4 D],
    and its row of the attention mask. A node of odd depth is the first of a block: it keeps its
    parent's, and its code waits for the second node, which runs the block and has both slots."""

    net: FalconNet

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        super().allocate(prefill, 2 * nodes + 1)
        self.size, self.dtype = nodes, prefill.hidden.dtype
        (rows, _, width), device = prefill.hidden.shape, prefill.hidden.device
        self.features = torch.zeros(rows, nodes + 1, 4 * width, device=device)
        self.before = torch.zeros(
            rows, 1, width, device=device
        )  # x at the position before the codes
        self.codes = torch.zeros(rows, nodes + 1, dtype=torch.long, device=device)

    def _read_prefix(self, ids: Tensor, valid: Tensor, hidden: Tensor) -> None:
        hidden = hidden[:, : self.first_slot].float()
        super()._read_prefix(ids, valid, hidden)
        self.before.copy_(self.net.mix(ids[:, -1:], hidden[:, -1:]))

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        """The block is the root and the code before it. The key of that code is in the cache
        already; its copy is written to a slot past all nodes, which no query sees."""
        assert self.features is not None
        net, width = self.net, hidden.shape[-1]
        positions = self._rows(position[:, None] + self.span[: codes.shape[1]])  # [R, T]
        last = self._rows(self.root(codes, count))  # [R, 1]
        u = net.mix(net.token_ids(self._rows(codes)), hidden.float())
        memory, parts = self.features[:, 0, 2 * width :], []
        for t in range(codes.shape[1]):
            x, memory = net.recur(u[:, t], memory, positions[:, t])
            parts.append(torch.cat([x, memory], -1))
        both = torch.stack(parts, 1)  # [R, T, 3 D]
        x, memory = both[..., :width], take(both, last)[..., width:]
        before = self.before
        if not self.first_slot:  # there is no position before the first code, which stands for it
            before = torch.where(positions[:, :1, None] == 0, x[:, :1], before)
        first = take(torch.cat([before, x], 1), last)  # [R, 1, D]
        self.before.copy_(take(x, last))
        self.root_slot.copy_(self.first_slot + positions.gather(1, last))
        slots = self.first_slot + positions
        mask = self._visible(slots)
        root = take(mask, last)  # [R, 1, S]
        positions = torch.cat([slots, (self.root_slot - 1).clamp_min(0)], 1)  # of the rotary table
        aside = self.root_slot + 2 * self.size + 1
        out = self._layer(
            torch.cat([x, first], 1),
            positions,
            torch.cat([slots, aside], 1),
            torch.cat([mask, root], 1),
            torch.cat([torch.full_like(last, codes.shape[1]), last], 1),
        )  # [R, 2, D], of the block's two positions
        self.masks[:, :1] = root
        self.features[:, :1] = torch.cat([*out.split(1, 1), memory], -1)
        return self._logits(self.features[:, :1], 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        assert self.features is not None
        codes, parents = self._rows(codes), self._rows(parents)  # [R, w]
        features, mask = take(self.features, parents), take(self.masks, parents)
        if depth % 2:
            self.codes.index_copy_(1, nodes, codes)
        else:
            pair = self.codes.gather(1, parents), codes
            slots = self.root_slot + nodes + self.size, self.root_slot + nodes  # [R, w] each
            first, second = (self.span == slot[..., None] for slot in slots)
            mask = torch.maximum(mask, additive_mask(first | second))
            features = self._block(pair, features, slots, depth, mask)
        self.features.index_copy_(1, nodes, features)
        self.masks.index_copy_(1, nodes, mask)
        return self._logits(features, depth)

    def _block(
        self,
        codes: Sequence[Tensor],
        before: Tensor,
        slots: Sequence[Tensor],
        depth: int,
        mask: Tensor,
    ) -> Tensor:
        """What nodes [R, w] of an even depth keep, [R, w, 4 D]; before: what the block before them
        did; codes and slots of the block's two positions."""
        net, width = self.net, before.shape[-1] // 4
        *features, h, c = before.split(width, -1)
        memory, inputs, positions = torch.cat([h, c], -1), [], []
        for i in (0, 1):
            position = (self.root_slot + depth - 1 + i).expand_as(codes[i])  # by depth, not by slot
            x, memory = net.recur(
                net.mix(net.token_ids(codes[i]), features[i]), memory, position - self.first_slot
            )
            inputs.append(x)
            positions.append(position)
        out = self._layer(
            torch.cat(inputs, 1),
            torch.cat(positions, 1),
            torch.cat([*slots], 1),
            mask.repeat(1, 2, 1),
        )
        return torch.cat([*out.chunk(2, 1), memory], -1)

    def _layer(
        self, x: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, *wanted: Any
    ) -> Tensor:
        return self.net.stack(x, positions, slots, mask, self.cache, *wanted)

    def _logits(self, hidden: Tensor, depth: int) -> Tensor:
        """hidden [R, w, 4 D]: the first feature's at an even depth, else the second one's."""
        mine = hidden.unflatten(-1, (4, -1))[..., depth % 2, :]
        return super()._logits(mine.to(self.dtype), depth)


def untrained(model: ImageModel) -> FalconNet:
    """A net for the model's target, float32."""
    target = transformer_of(model)
    net = FalconNet(target.config, target.tok_embeddings.weight)
    net.code_tokens = target.code_tokens
    return net


class Falcon(TrainedDrafter):
    session = FalconSession
    untrained = staticmethod(untrained)

    def forwards(self, levels: int) -> int:
        """One runs two levels."""
        return (levels + 1) // 2


class FalconLearner(FeatureLearner):
    """Trains the net: every root has a block at the depths 1 and 2, the given ones deeper ones."""

    untrained = staticmethod(untrained)

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, codes, start = self.net, states.codes, self.start
        length, entries = codes.shape[1], GrowingCache()
        tokens = net.token_ids(codes)  # [R, L]
        ids = torch.cat([net.prefix_ids(states.text, states.drop), tokens], 1)  # [R, P - 1 + L]
        u = net.mix(ids, self.read(states))
        x, memory = self._scanned(u[:, start:])  # [R, L, D], [R, L, 2 D]
        x = torch.cat([u[:, :start], x], 1)
        valid = F.pad(net.valid(states.text, states.drop), (0, length), value=True)
        mask = prefix_mask(valid, net.config)
        every = torch.arange(length, device=codes.device)  # roots
        second = self._layer(x, net.rope[: ids.shape[1]], mask, entries)[:, start:]
        before = (start + every - 1).clamp_min(0)  # the first position of a root's block
        below = F.pad(mask[:, start:], (0, length))  # nobody looks at the keys of these once more
        first = self._layer(x[:, before], net.rope[before], below, entries)
        drafted = [
            self._drafted(every[1:], first[:, :-1]),
            self._drafted(every[2:], second[:, :-2]),
        ]
        pair, memory, below = (first[:, roots], second[:, roots]), memory[:, roots], below[:, roots]
        same = torch.eye(len(roots), dtype=torch.bool, device=roots.device)
        same = same.expand(len(codes), -1, -1)
        for d in range(3, depth + 1, 2):
            positions, inputs = (roots + d - 2, roots + d - 1), []  # of the codes that are read
            for position, feature in zip(positions, pair, strict=True):
                x, memory = net.recur(net.mix(tokens[:, position], feature), memory, position)
                inputs.append(x)
            below = torch.cat([below, same, same], -1)  # [R, m, S]
            rope = net.rope[start + torch.cat(positions)]
            out = self._layer(torch.cat(inputs, 1), rope, below.repeat(1, 2, 1), entries)
            pair = out[:, : len(roots)], out[:, len(roots) :]
            drafted += [self._drafted(roots + d + i, mine) for i, mine in enumerate(pair)]
        return drafted[:depth]

    def _scanned(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """u of the image's codes [R, L, D] -> x [R, L, D] and memory [R, L, 2 D], rows of the image
        side by side."""
        net = self.net
        lines = u.unflatten(1, (-1, net.columns))  # [R, rows, columns, D]
        memory, parts = torch.zeros_like(lines[:, :, 0]).repeat(1, 1, 2), []
        for line, position in zip(
            lines.unbind(2), torch.arange(net.columns).to(u.device), strict=True
        ):
            x, memory = net.recur(line, memory, position)
            parts.append(torch.cat([x, memory], -1))
        both = torch.stack(parts, 2).flatten(1, 2)  # [R, L, 3 D]
        return both[..., : u.shape[-1]], both[..., u.shape[-1] :]
