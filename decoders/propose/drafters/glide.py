"""GliDe drafter (2402.02082): one layer that glimpses at the target's last keys and values.

Self-attention over the codes, cross-attention over what the target's last layer keeps, a
feed-forward; embedding and head are the target's. It reads no state, so a deeper draft needs
nothing of the one above but its code. When a draft is made, the target has not read the root yet:
the newest keys that any node sees are those of the code before the root. Training masks them alike
at every depth. CaPE, which gives unsure nodes more children, is a tree: `tree=cape`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Prefill
from decoders.cache import KEYS, VALUES, GrowingCache, KVCache, Reads, additive_mask
from decoders.models.nets.attention import attend
from decoders.models.nets.shape import rope_table
from decoders.models.nets.transformer import (
    Layer,
    attention_bias,
    rope_at,
    rotate,
    transformer_of,
)
from decoders.propose.drafters.common.drafter import NetLearner, TrainedDrafter
from decoders.propose.drafters.common.eagle_learner import Head
from decoders.propose.drafters.common.sessions import CachedSession, NetInput
from decoders.training.states import Drafted, States


class GlideNet(nn.Module):
    """The trained part. ``config`` is the target's configuration; it starts with its last norm."""

    rope: Tensor

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        target = transformer_of(model)
        self.config = config = target.config
        self.reads: Reads = (config.layers - 1, KEYS), (config.layers - 1, VALUES)
        self.layer = Layer(config)
        self.glimpse_norm, self.norm = (nn.RMSNorm(config.width, config.norm_eps) for _ in range(2))
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.register_buffer("rope", rope_table(config), persistent=False)
        with torch.no_grad():
            self.norm.weight.copy_(target.norm.weight)
            for linear in (self.out, self.layer.attention.wo, self.layer.feed_forward.w2):
                linear.weight.mul_(0.5)

    def glimpse(self, x: Tensor, rope: Tensor, bias: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Cross-attention of x [R, T, D] over the target's keys and values [R, H, S, d], in their
        dtype, since another one would be a copy of the whole cache; bias [R, 1, T, S]."""
        config, (rows, length, _) = self.config, x.shape
        query = self.query(self.glimpse_norm(x)).view(rows, length, -1, config.head_dim)
        query = rotate(query.transpose(1, 2), rope)  # [R, H, T, d]
        values = attend(query.to(k.dtype), k, v, bias).to(x.dtype)  # [R, H, T, d]
        return self.out(values.transpose(1, 2).reshape(rows, length, -1))

    def run(
        self,
        x: Tensor,
        rope: Tensor,
        codes: tuple[Tensor, Any, Tensor],
        target: tuple[Tensor, Tensor, Tensor],
    ) -> Tensor:
        """Embeddings [R, T, D] -> what the target's head reads, [R, T, D]. codes: bias
        [R, 1, T, S], cache and index of the self-attention; target: bias, keys and values."""
        layer = self.layer
        bias, cache, index = codes
        x = x + layer.attention(layer.attention_norm(x), rope, bias, 0, cache, index)
        x = x + self.glimpse(x, rope, *target)
        return self.norm(x + layer.feed_forward(layer.ffn_norm(x)))


class GlideSession(CachedSession):
    """It reads codes, and the target's cache. The slots of its own cache are the codes'
    positions."""

    first_slot = 0

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        super().allocate(prefill, nodes)
        self.target_cache: KVCache = prefill.cache
        rows, size, device = len(prefill.hidden), prefill.cache.capacity, prefill.hidden.device
        self.open = torch.ones(rows, size, dtype=torch.bool, device=device)
        self.target_slots = torch.arange(size, device=device)

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        config = self.net.config
        device = self.root_code.device
        return KVCache(1, rows, capacity, config.heads, config.head_dim, torch.float32, device)

    def read_prefix(self, prefill: Prefill) -> None:
        """Keeps which slots of the target's prefix are valid."""
        self.open[:, : self.net.config.prefix].copy_(prefill.text.row_mask(self.copies))

    def _visible(self, slots: Tensor) -> Tensor:
        return additive_mask(self.span <= slots[..., None])  # no prefix

    def _forward(self, inputs: NetInput) -> Tensor:
        net, config, cache = self.net, self.net.config, self.target_cache
        x = self.target.embed(inputs.codes).float()  # type: ignore[attr-defined]  # of a Transformer
        rope = rope_at(net.rope, config.prefix + inputs.positions)[:, None]  # [R, 1, T, d / 2]
        read = self.target_slots < config.prefix + self.root_slot  # [R, S], slots before the root's
        glimpsed = (read & self.open)[:, None].expand(-1, x.shape[1], -1)  # [R, T, S]
        bias = attention_bias(inputs.mask, x.dtype)
        k, v = cache.read(config.layers - 1).unbind(0)
        target = attention_bias(glimpsed, k.dtype), k, v
        out = net.run(x, rope, (bias, self.cache, self.cache.flat_index(inputs.slots)), target)
        return inputs.pick(out.to(k.dtype))  # as the target's head takes it


class Glide(TrainedDrafter):
    session = GlideSession
    untrained, reads_cache = GlideNet, True


class GlideLearner(NetLearner):
    """Trains the layer."""

    untrained = GlideNet

    @property
    def reads(self) -> Reads:
        return self.net.reads

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, target, codes = self.net, self.target, states.codes
        assert states.keys_values is not None
        prefix, length = target.prefix, codes.shape[1]
        shape = (len(codes), states.keys_values.shape[1], net.config.heads, net.config.head_dim)
        k, v = (
            part.float().reshape(shape).transpose(1, 2) for part in states.keys_values.unbind(2)
        )
        slots = torch.arange(shape[1], device=codes.device)
        open_ = F.pad(states.text.valid(states.drop), (0, shape[1] - prefix), value=True)  # [R, S]
        entries, drafted = GrowingCache(), []
        every = torch.arange(length - 1, device=codes.device)  # positions of the codes with keys
        for d, at in enumerate(self.levels(states, roots, depth), 1):
            reads = at + d - 1  # [m], positions of the codes that are read
            again = (d - 1) * len(roots)  # keys of codes that are among the first L - 1
            before = F.pad(every <= reads[:, None], (0, again))  # [m, S]
            glimpsed = (slots < prefix + at[:, None]) & open_[:, None]  # [R, m, S]
            out = net.run(
                target.embed(codes[:, reads]).float(),
                net.rope[prefix + reads],
                (attention_bias(before.expand(len(codes), -1, -1), k.dtype), entries, codes),
                (attention_bias(glimpsed, k.dtype), k, v),
            )
            drafted.append(Drafted(reads + 1, out, Head(target)))
        return drafted
