"""GliDe drafter (2402.02082): one layer that glimpses at the target's last keys and values.

Self-attention over the codes, cross-attention over what the target's last layer keeps, a
feed-forward; embedding and head are the target's. It reads no state, so its own keys and values are
functions of the codes alone, and a deeper draft needs nothing of the one above but its code.

When a draft is made, the target has not read the root yet: the newest keys that any node of a step
sees are those of the code before the root. Training masks them alike at every depth, which is the
paper's block-wise mask at the block that a step really has.

CaPE, which gives unsure nodes more children, is a tree's affair and not here: `tree=dynamic` spends
its nodes by confidence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import Drafter, DraftSession, ImageModel, Sampling, TextFeatures
from decoders.cache import KEYS, VALUES, KVCache, Reads, aligned
from decoders.capability import RESTART, Known
from decoders.distribution import code_logits
from decoders.kernels.reference import additive
from decoders.models.parts import RMSNorm
from decoders.models.shape import TransformerConfig, rope_table
from decoders.models.transformer import Layer, attend, rotate, turns
from decoders.propose.drafters.eagle import check_match, take
from decoders.propose.drafters.eagle_learner import Entries, Head
from decoders.propose.drafters.weights import FLOAT, fill, save, trained
from decoders.training.states import Drafted, States, transformer_of


class GlideNet(nn.Module):
    """The trained part. ``cfg`` is the target's configuration."""

    rope: Tensor

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.layer = Layer(cfg)
        self.glimpse_norm, self.norm = (RMSNorm(cfg.width, cfg.norm_eps) for _ in range(2))
        self.query = nn.Linear(cfg.width, cfg.width, bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)
        self.register_buffer("rope", rope_table(cfg), persistent=False)

    def glimpse(self, x: Tensor, rope: Tensor, bias: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Cross-attention of x [R, T, D] over the target's keys and values [R, K, S, d]; bias
        [R, 1, G T, S]."""
        cfg, (rows, length, _) = self.cfg, x.shape
        query = self.query(self.glimpse_norm(x)).view(rows, length, -1, cfg.head_dim)
        query = rotate(query.transpose(1, 2), rope)  # [R, H, T, d]
        query = query.reshape(rows, cfg.kv_heads, -1, cfg.head_dim)  # [R, K, G T, d]
        found = attend(query, k, v, bias).reshape(rows, cfg.heads, length, cfg.head_dim)
        return self.out(found.transpose(1, 2).reshape(rows, length, -1))

    def run(
        self,
        x: Tensor,
        rope: Tensor,
        own: tuple[Tensor, Any, Tensor],
        target: tuple[Tensor, Tensor, Tensor],
    ) -> Tensor:
        """Embeddings [R, T, D] -> what the target's head reads, [R, T, D]. own: bias
        [R, 1, G T, S], cache and index of the self-attention; target: bias, keys and values."""
        layer = self.layer
        bias, cache, index = own
        x = x + layer.attention(layer.attention_norm(x), rope, bias, 0, cache, index)
        x = x + self.glimpse(x, rope, *target)
        return self.norm(x + layer.feed_forward(layer.ffn_norm(x)))


class GlideSession(Known, DraftSession):
    """Drafts for B images, kept as R rows. Its own slots are the codes' places, and behind the root
    one a node."""

    known = RESTART

    def __init__(
        self,
        net: GlideNet,
        model: ImageModel,
        text: TextFeatures,
        sampling: Sampling,
        max_new: int,
        nodes: int,
        kept: KVCache,
    ) -> None:
        self.net, self.target, self.cfg = net, model.target, sampling.cfg
        self.kept, self.copies, self.prefix = kept, sampling.guidance_rows, net.cfg.prefix
        rows, device = self.copies * text.batch, kept.data.device
        capacity = aligned(net.cfg.length + max_new + nodes + 1)
        heads = net.cfg.kv_heads, net.cfg.head_dim
        self.cache = KVCache(1, rows, capacity, *heads, torch.float32, device)
        self.slots = torch.arange(max(capacity, kept.capacity), device=device)
        self.seen = torch.zeros(rows, nodes + 1, capacity, dtype=torch.bool, device=device)
        self.open = torch.ones(rows, kept.capacity, dtype=torch.bool, device=device)
        self.root_code = torch.zeros(text.batch, dtype=torch.long, device=device)
        self.root = torch.zeros(rows, 1, dtype=torch.long, device=device)  # its place
        self._read(text)

    def restart(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        """See `decoders.api.DraftSession`."""
        del prefix_hidden  # it reads no states
        self.cache.cleared()
        self._read(text)

    def _read(self, text: TextFeatures) -> None:
        """Which slots of the target's prefix are there to be seen."""
        self.calls = 0
        self.open[:, : self.prefix].copy_(text.row_mask(self.copies))

    def _rows(self, values: Tensor) -> Tensor:
        """[B, ...] -> [R, ...]."""
        return values if self.copies == 1 else torch.cat([values] * self.copies)

    def _forward(self, codes: Tensor, places: Tensor, slots: Tensor, seen: Tensor) -> Tensor:
        """codes, places, own slots [R, T], seen [R, T, own S] -> [R, T, D]."""
        self.calls += 1
        net, group = self.net, self.net.cfg.group
        x = self.target.embed(codes).float()  # type: ignore[attr-defined]  # of a Transformer
        rope = turns(net.rope, self.prefix + places)[:, None]  # [R, 1, T, d / 2]
        known = self.slots[: self.kept.capacity] < self.prefix + self.root  # [R, S]
        glimpsed = (known & self.open)[:, None].expand(-1, codes.shape[1], -1)  # [R, T, S]
        own = additive(seen, x.dtype, group), self.cache, self.cache.flat_index(slots)
        last = net.cfg.layers - 1
        k, v = (both.float() for both in self.kept.read(last))
        out = net.run(x, rope, own, (additive(glimpsed, x.dtype, group), k, v))
        return out.to(self.kept.data.dtype)  # as the target's head takes it

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        del hidden  # it reads codes, and the target's cache
        last = count[:, None] - 1  # [B, 1]
        self.root_code.copy_(codes.gather(1, last)[:, 0])
        self.root.copy_(self._rows(start[:, None] + last))
        places = self._rows(start[:, None] + self.slots[: codes.shape[1]])  # [R, T]
        seen = self.slots[: self.cache.capacity] <= places[..., None]  # [R, T, S]
        out = self._forward(self._rows(codes), places, places, seen)
        last = self._rows(last)  # [R, 1]
        self.seen[:, :1] = take(seen, last)
        return self._logits(take(out, last), 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        slots = self.root + nodes  # [R, w]
        places = (self.root + depth).expand_as(slots)  # by depth, not by slot
        own = self.slots[: self.cache.capacity] == slots[..., None]  # [R, w, S]
        seen = take(self.seen, self._rows(parents)) | own
        out = self._forward(self._rows(codes), places, slots, seen)
        self.seen.index_copy_(1, nodes, seen)
        return self._logits(out, depth)

    def _logits(self, hidden: Tensor, depth: int) -> Tensor:
        """Guided logits [B, w, V] of the codes behind nodes of one depth; hidden [R, w, D]."""
        places = self.root[: len(self.root_code)] + depth + 1  # [B, 1]
        return code_logits(self.target, hidden, self.cfg, places.expand(-1, hidden.shape[1]))


class Glide(Drafter):
    """The drafter as a part. checkpoint: a name of the model's drafters, or a folder that `bench
    train drafter=glide` wrote; None: untrained."""

    reads_cache = True

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.net, self.model = trained(model, checkpoint, made, FLOAT), model
        check_match(self.net, model.target)

    def __str__(self) -> str:
        return "glide"

    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
        kept: KVCache | None = None,
    ) -> GlideSession:
        del prefix_hidden
        assert kept is not None
        return GlideSession(self.net, self.model, text, sampling, max_new, nodes, kept)


class GlideLearner:
    """Trains the layer (`decoders.training.states.Learner`)."""

    net: nn.Module

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.target = transformer_of(model)
        net = made(model)
        if checkpoint is not None:
            fill(net, model, checkpoint)
        self.net = self.glide = net.to(model.device)
        last = self.target.cfg.layers - 1
        self.reads: Reads = ((last, KEYS), (last, VALUES))

    def draft(
        self, states: States, roots: Tensor, depth: int, noise: Tensor | None = None
    ) -> list[Drafted]:
        del noise  # it reads no states
        net, target, codes, kept = self.glide, self.target, states.codes, states.kept
        assert kept is not None
        prefix, length = target.prefix, codes.shape[1]
        shape = (len(codes), kept.shape[1], net.cfg.kv_heads, net.cfg.head_dim)
        k, v = (part.float().reshape(shape).transpose(1, 2) for part in kept.unbind(2))
        slots = torch.arange(shape[1], device=codes.device)
        open_ = F.pad(states.text.valid(states.drop), (0, shape[1] - prefix), value=True)  # [R, S]
        entries, drafted = Entries(), []
        every = torch.arange(length - 1, device=codes.device)  # roots of depth 1
        for d in range(1, depth + 1):
            at = every if d == 1 else roots
            reads = at + d - 1  # [m], places of the codes that are read
            again = (d - 1) * len(roots)  # keys of codes that are among the first L - 1
            own = F.pad(every <= reads[:, None], (0, again))  # [m, S]
            seen = (slots < prefix + at[:, None]) & open_[:, None]  # [R, m, S]
            group = net.cfg.group
            out = net.run(
                target.embed(codes[:, reads]).float(),
                net.rope[prefix + reads],
                (additive(own.expand(len(codes), -1, -1), k.dtype, group), entries, codes),
                (additive(seen, k.dtype, group), k, v),
            )
            drafted.append(Drafted(reads + 1, out, Head(target)))
        return drafted

    def save(self, folder: Path) -> str:
        return save(self.net, folder)


def made(model: ImageModel) -> GlideNet:
    """An untrained net for the model's target, float32, with the target's last norm."""
    target = transformer_of(model)
    net = GlideNet(target.cfg)
    with torch.no_grad():
        net.norm.weight.copy_(target.norm.weight)
        for linear in (net.out, net.layer.attention.wo, net.layer.feed_forward.w2):
            linear.weight.mul_(0.5)
    return net
