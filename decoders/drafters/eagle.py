"""EAGLE drafter (2401.15077, METHODS 3): one decoder layer that predicts the target's next feature.

Input at the place of a code: [embedding of the code ; target feature that predicted it], 2D -> D,
one layer without input norm, no final norm; the target's own head gives q. It runs on the
conditional and on the unconditional row, and its logits are guided like the target's. The
drafter's prefix is P - 1 positions (the target's prefix states but the last), with its rotary
table shifted by one accordingly.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, Sampling, TextFeatures
from decoders.cache import KVCache
from decoders.distribution import guided
from decoders.models.llamagen import Layer, LlamaGenConfig, additive, prefix_mask, rope_table


class EagleNet(nn.Module):
    """The trained part. ``cfg`` is the target's configuration: width, heads and grid must match."""

    rope: Tensor

    def __init__(self, cfg: LlamaGenConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab, cfg.width)
        self.fc = nn.Linear(2 * cfg.width, cfg.width, bias=True)
        self.layers = nn.ModuleList([Layer(cfg, input_norm=False)])
        self.register_buffer("rope", rope_table(cfg)[1:], persistent=False)

    def mix(self, codes: Tensor, features: Tensor) -> Tensor:
        """codes [R, T], features [R, T, D] -> layer input [R, T, D]."""
        embedded = self.embed_tokens(codes).to(features.dtype)
        return self.fc(torch.cat([embedded, features], -1))

    def run(
        self,
        codes: Tensor,
        features: Tensor,
        rope: Tensor,
        bias: Tensor,
        cache: KVCache,
        index: Tensor,
    ) -> Tensor:
        """bias [R, 1, T, S], index from `KVCache.flat_index` -> predicted features [R, T, D]."""
        return self.layers[0](self.mix(codes, features), rope, bias, 0, cache, index)

    def forward(self, codes: Tensor, features: Tensor, mask: Tensor) -> Tensor:
        """Teacher-forced training: codes [B, T], features [B, T, D], mask [B, T, T] bool, where T =
        P - 1 prefix places and then the image's codes."""
        rope = self.rope[: codes.shape[1]]  # [T, d / 2]
        x = self.mix(codes, features)
        return self.layers[0](x, rope, additive(mask, x.dtype))


class EagleSession:
    """Drafts for B images: its own key/value cache, and what is known of the tree's nodes.

    Everything is kept for the R rows (conditional, then unconditional), so that a draft copies only
    the new codes. Per node there are the predicted feature and its row of the attention bias: a
    child's row is its parent's with one more visible slot. Node i writes i slots behind the root.
    """

    def __init__(
        self,
        net: EagleNet,
        model: ImageModel,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> None:
        self.net, self.target, self.cfg = net, model.target, sampling.cfg
        self.copies = sampling.guidance_rows
        rows = prefix_hidden.shape[0]
        self.start = model.target.prefix - 1  # P - 1
        weight = net.fc.weight
        device = weight.device
        capacity = self.start + model.target.length + max_new + nodes + 1
        heads, head_dim = net.cfg.heads, net.cfg.head_dim
        self.cache = KVCache(1, rows, capacity, heads, head_dim, weight.dtype, device)
        self.places = torch.arange(capacity, device=device)  # [S]
        mask = self._rows(text.mask)[:, : self.start]  # [R, P - 1]
        self.prefix = F.pad(mask, (0, capacity - self.start))[:, None]  # [R, 1, S]
        self.behind = self.places >= self.start  # [S], slots of the image's codes
        self.features = prefix_hidden.new_zeros(rows, nodes + 1, prefix_hidden.shape[-1])
        self.bias = torch.zeros(rows, nodes + 1, capacity, dtype=weight.dtype, device=device)
        self.calls = 0
        self.root_code = torch.zeros(text.batch, dtype=torch.long, device=device)
        self.root_slot = torch.zeros(rows, 1, dtype=torch.long, device=device)
        if self.start:
            self._read_prefix(mask, prefix_hidden)

    def _rows(self, values: Tensor) -> Tensor:
        """[B, ...] -> [R, ...]."""
        return values if self.copies == 1 else torch.cat([values] * self.copies)

    def _read_prefix(self, mask: Tensor, hidden: Tensor) -> None:
        size = self.start
        seen = F.pad(prefix_mask(mask), (0, self.cache.capacity - size))  # [R, P - 1, S]
        slots = self.places[:size].expand(len(mask), -1)  # [R, P - 1]
        codes, bias = torch.zeros_like(slots), additive(seen, hidden.dtype)[:, 0]
        self._forward(codes, hidden[:, :size], slots, slots, bias)

    def _forward(
        self, codes: Tensor, features: Tensor, slots: Tensor, places: Tensor, bias: Tensor
    ) -> Tensor:
        """codes, slots and places in the rotary table [R, T]; features [R, T, D]; bias [R, T, S]
        -> features [R, T, D]."""
        self.calls += 1
        rope = self.net.rope[places.clamp_max(len(self.net.rope) - 1)][:, None]  # [R, 1, T, d / 2]
        index = self.cache.flat_index(slots)
        return self.net.run(codes, features, rope, bias[:, None], self.cache, index)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        slots = self._rows((self.start + start)[:, None] + self.places[: codes.shape[1]])  # [R, T]
        seen = self.behind & (self.places <= slots[..., None])  # [R, T, S]
        bias = additive(seen | self.prefix, hidden.dtype)[:, 0]  # [R, T, S]
        out = self._forward(self._rows(codes), hidden, slots, slots, bias)
        last = count[:, None] - 1  # [B, 1]
        self.root_code = codes.gather(1, last)[:, 0]
        last = self._rows(last)  # [R, 1]
        self.features[:, :1] = take(out, last)
        self.bias[:, :1] = take(bias, last)
        self.root_slot = slots.gather(1, last)  # [R, 1]
        return guided(self.target.logits(self.features[:, :1]), self.cfg)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        codes, parents = self._rows(codes), self._rows(parents)  # [R, w]
        slots = self.root_slot + nodes  # [R, w]
        places = (self.root_slot + depth).expand_as(slots)  # by depth, not by slot
        bias = take(self.bias, parents).scatter_(2, slots[..., None], 0.0)  # [R, w, S]
        out = self._forward(codes, take(self.features, parents), slots, places, bias)
        self.bias.index_copy_(1, nodes, bias)
        self.features.index_copy_(1, nodes, out)
        return guided(self.target.logits(out), self.cfg)


def take(values: Tensor, index: Tensor) -> Tensor:
    """values [R, n, C], index [R, w] -> [R, w, C]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


class Eagle:
    """The drafter as a part: ``checkpoint`` names one of the model's drafters."""

    def __init__(self, model: ImageModel, checkpoint: str = "eagle") -> None:
        if checkpoint not in model.drafters:
            raise DecoderError(
                f"model {model.name!r} has no drafter {checkpoint!r}; it has: "
                f"{', '.join(model.drafters) or 'none'}"
            )
        net = model.drafters[checkpoint]
        check_match(net, model.target)
        self.net, self.model = net, model

    def __str__(self) -> str:
        return "eagle"

    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> EagleSession:
        return EagleSession(self.net, self.model, text, prefix_hidden, sampling, max_new, nodes)


def check_match(net: Any, target: Any) -> None:
    """Drafter and target must agree on width, vocabulary and grid."""
    pairs = {
        "width": (net.cfg.width, target.width),
        "vocab": (net.cfg.vocab, target.vocab_size),
        "grid": (net.cfg.grid**2, target.length),
        "prefix": (net.cfg.prefix, target.prefix),
    }
    wrong = [f"{name}: drafter {a}, target {b}" for name, (a, b) in pairs.items() if a != b]
    if wrong:
        raise DecoderError(
            "drafter and target do not fit: "
            + "; ".join(wrong)
            + ". Train a drafter for this target, or pick the one it was made for"
        )
