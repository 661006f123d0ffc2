"""SpecDec's drafter (2203.16487): a block of masked positions is filled in one forward. Its one
layer reads the target's states, as DFlash's (2602.06036).

The committed positions are entries: the target's state that predicted a code, and that code,
through one matrix. A block is the K = 6 positions behind the root, each a mask of its distance
added to the root's entry; they attend to all entries up to the root and, in both directions, to
each other. The target's head reads them. So all depths are one forward, and a node's distribution
follows from its depth.

One denoising step: the codes of a block do not hang on each other, and q is a function of the
committed codes, which the exact rule needs. DFlash stacks layers, so that the positions of a block
hear what the others read; with one layer a mask hears of the others the root's entry alone. A mask
for every distance and the root in every mask are choices of this file: in one layer a mask that
knows neither asks the same of every image. Positions are the target's, by its rotary table.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from decoders.api import ImageModel, Prefill
from decoders.cache import KVCache
from decoders.distribution import code_logits, take
from decoders.models.nets.shape import rope_table
from decoders.models.nets.transformer import FeedForward, rope_at, rotate, transformer_of
from decoders.propose.drafters.common.drafter import NetLearner, TrainedDrafter
from decoders.propose.drafters.common.eagle_learner import Head
from decoders.propose.drafters.common.sessions import DepthSession
from decoders.training.states import Drafted, States

DEPTHS = 6  # K, positions of a block; the tree must not be deeper


class SpecDecNet(nn.Module):
    """The trained part, for a target of width D and H query heads. It starts with the target's last
    norm."""

    rope: Tensor

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        target = transformer_of(model)
        self.config = config = target.config
        width = config.width
        self.joined = nn.Linear(2 * width, width)
        self.masks = nn.Parameter(0.02 * torch.randn(DEPTHS, width))
        self.query = nn.Linear(width, width, bias=False)
        # Keys and values, of what is known (entries) and of masks. Its name is in files of weights.
        self.known = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward = FeedForward(config)
        self.input_norm, self.ffn_norm, self.norm = (
            nn.RMSNorm(width, config.norm_eps) for _ in range(3)
        )
        self.register_buffer("rope", rope_table(config), persistent=False)
        with torch.no_grad():
            self.norm.weight.copy_(target.norm.weight)
            for linear in (self.out, self.feed_forward.w2):
                linear.weight.mul_(0.5)

    def entries(self, states: Tensor, embedded: Tensor) -> Tensor:
        """States [R, m, D] that predicted codes, and the codes' embeddings -> [R, m, D]."""
        return self.joined(torch.cat([states.float(), embedded.float()], -1)).float()

    def keys(self, x: Tensor, rope: Tensor) -> Tensor:
        """Keys and values of entries or masks x [R, ..., D] -> [2, R, H, ..., d]."""
        both = self.known(self.input_norm(x)).unflatten(-1, (2, self.config.heads, -1))
        k, v = both.movedim(-2, 1).unbind(-2)  # [R, H, ..., d] each
        return torch.stack([rotate(k, rope).to(v.dtype), v])

    def run(
        self, root: Tensor, rope: Tensor, count: int, k: Tensor, v: Tensor, bias: Tensor
    ) -> Tensor:
        """The first `count` positions of the blocks behind m roots, as the head reads them.

        root [R, m, D], the roots' entries; rope [R or 1, 1, m, K, d / 2] of the blocks' positions;
        k, v [R, H, S, d] of the entries; bias [R or 1, 1, m, S], 0 or minus infinity -> [R, m,
        count, D].
        """
        x = root[:, :, None] + self.masks  # [R, m, K, D]
        near = self.keys(x, rope)  # [2, R, H, m, K, d]
        x = x[:, :, :count]
        query = self.query(self.input_norm(x)).unflatten(-1, (self.config.heads, -1))
        query = rotate(query.movedim(-2, 1), rope[:, :, :, :count]).to(v.dtype)  # [R, H, m, n, d]
        query = query * query.shape[-1] ** -0.5
        far = query.flatten(2, 3) @ k.transpose(-1, -2)  # [R, H, m n, S]
        far = far.unflatten(2, (-1, count)) + bias[..., None, :]  # [R, H, m, n, S]
        share = torch.cat([far, query @ near[0].transpose(-1, -2)], -1).softmax(-1)
        far, block = share.split((k.shape[2], DEPTHS), -1)
        values = (far.flatten(2, 3) @ v).unflatten(2, (-1, count)) + block @ near[1]
        x = x + self.out(values.movedim(1, -2).flatten(-2))  # [R, m, n, D]
        return self.norm(x + self.feed_forward(self.ffn_norm(x)))


class SpecDecSession(DepthSession):
    """What it keeps of the images are the entries' keys and values by position, and the logits of a
    block."""

    depths = DEPTHS

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        super().allocate(prefill, nodes)
        config, size = self.net.config, len(self.span)
        shape = 1, len(prefill.hidden), size, config.heads, config.head_dim
        self.cache = KVCache(*shape, torch.float32, prefill.hidden.device)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        net, prefix, last = self.net, self.net.config.prefix, self.root(codes, count)  # [B, 1]
        read = self._rows(position[:, None] + self.span[: codes.shape[1]])  # [R, T], positions
        embedded = self.target.embed(self._rows(codes))  # type: ignore[attr-defined]
        entries = net.entries(hidden, embedded)  # [R, T, D]
        both = net.keys(entries, rope_at(net.rope, prefix + read)[:, None])
        self.cache.write(0, self.cache.flat_index(read), both)
        root = position[:, None] + last  # [B, 1]
        positions = root + 1 + self.span[:DEPTHS]  # [B, K]
        rope = rope_at(net.rope, self._rows(prefix + positions))[:, None, None]
        unseen = self.span[: self.cache.capacity] > self._rows(root)  # [R, S]
        bias = torch.zeros(unseen.shape, device=unseen.device).masked_fill(unseen, float("-inf"))
        k, v = self.cache.read(0).unbind(0)
        entry = take(entries, self._rows(last))
        out = net.run(entry, rope, DEPTHS, k, v, bias[:, None, None])[:, 0]  # [R, K, D]
        self.logits.copy_(code_logits(self.target, out.to(hidden.dtype), self.cfg, positions))
        return self.logits[:, 0]


class SpecDec(TrainedDrafter):
    session, untrained = SpecDecSession, SpecDecNet
    most_levels, one_forward = DEPTHS, True


class SpecDecLearner(NetLearner):
    """Trains the layer."""

    untrained = SpecDecNet

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, target, codes = self.net, self.target, states.codes  # [R, L]
        depth, prefix, length = min(depth, DEPTHS), target.prefix, codes.shape[1]
        read = self.read(states)[:, self.start :]  # [R, L, D], what predicted the codes
        entries = net.entries(read, target.embed(codes))
        position = torch.arange(length, device=codes.device)
        k, v = net.keys(entries, net.rope[prefix + position])  # [R, H, L, d] each
        ahead = torch.arange(1, DEPTHS + 1, device=codes.device)

        def blocks(at: Tensor, count: int) -> Tensor:
            bias = torch.zeros(len(at), length, device=codes.device)
            bias = bias.masked_fill(position > at[:, None], float("-inf"))
            rope = rope_at(net.rope, prefix + at[:, None] + ahead)  # [m, K, d / 2]
            out = net.run(entries[:, at], rope[None, None], count, k, v, bias[None, None])
            return out  # [R, m, count, D]

        head, every = Head(target), position[:-1]  # roots of depth 1
        drafted = [Drafted(every + 1, blocks(every, 1)[:, :, 0], head)]
        if depth > 1:
            deeper = blocks(roots, depth)
            drafted += [Drafted(roots + d + 1, deeper[:, :, d], head) for d in range(1, depth)]
        return drafted
