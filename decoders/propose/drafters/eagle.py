"""EAGLE drafter (2401.15077, METHODS 3): one decoder layer that predicts the target's next feature.

Input at the place of a code: [embedding of the code ; target feature that predicted it], 2D -> D,
one layer without input norm, no final norm; the target's own head gives q. It runs on the
conditional and on the unconditional row, and its logits are guided like the target's. The
drafter's prefix is P - 1 positions (the target's prefix states but the last), with its rotary
table shifted by one accordingly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, ImageModel, TextFeatures
from decoders.cache import KVCache
from decoders.masks import added
from decoders.models.eagle_net import EagleNet
from decoders.models.transformer import prefix_mask
from decoders.propose.drafters.eagle_checkpoint import load_eagle
from decoders.propose.drafters.shared import CachedSession, NetDrafter, check_match


class EagleSession(CachedSession):
    """Drafts for B images. Everything is kept for the R rows, so that a draft copies only the new
    codes. Per node there are the predicted feature and its row of the attention mask."""

    def allocate(self, like: Tensor, nodes: int) -> None:
        self.start = self.target.prefix - 1  # P - 1
        super().allocate(like, nodes)
        self.features = like.new_zeros(len(like), nodes + 1, like.shape[-1])

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        cfg, weight = self.net.cfg, self.net.fc.weight
        return KVCache(1, rows, capacity, cfg.kv_heads, cfg.head_dim, weight.dtype, weight.device)

    def _read(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        super()._read(text, prefix_hidden)
        rows, drop = text.paired(self.copies)
        mask = self.net.valid(rows, drop)  # [R, P - 1]
        self.prefix[:, 0, : self.start].copy_(added(mask))
        if self.start:
            self._read_prefix(self.net.prefix_ids(rows, drop), mask, prefix_hidden)

    def _read_prefix(self, ids: Tensor, mask: Tensor, hidden: Tensor) -> None:
        size = self.start
        seen = F.pad(
            prefix_mask(mask, self.net.cfg), (0, self.cache.capacity - size)
        )  # [R, P - 1, S]
        slots = self.places[:size].expand(len(mask), -1)  # [R, P - 1]
        self.calls += 1
        self.net.step(ids, hidden[:, :size], slots, slots, seen, self.cache)

    def _forward(
        self,
        codes: Tensor,
        features: Any,
        slots: Tensor,
        places: Tensor,
        seen: Tensor,
        wanted: Tensor | None = None,
    ) -> Tensor:
        self.calls += 1
        ids = self.net.token_ids(codes)
        return self.net.step(ids, features, places, slots, seen, self.cache, wanted)


class Eagle(NetDrafter):
    """The drafter as a part: ``checkpoint`` names one of the model's drafters, or is a folder or
    hub id in the released layout."""

    opens = EagleSession

    def __init__(self, model: ImageModel, checkpoint: str = "eagle") -> None:
        self.net, self.model = net_of(model, checkpoint), model
        check_match(self.net, model.target)


def net_of(model: ImageModel, checkpoint: str) -> EagleNet:
    """The net under a name of the model's drafters, loaded once however many decoders use it.

    Raises DecoderError where there is no such drafter, or its files are not what they should be.
    """
    found = model.drafters.get(checkpoint, checkpoint)
    if isinstance(found, EagleNet):
        return found
    known = checkpoint in model.drafters
    if not known and "/" not in found and not Path(found).exists():
        raise DecoderError(
            f"model {model.name!r} has no drafter {checkpoint!r}; it has: "
            f"{', '.join(model.drafters) or 'none'}. A folder or a hub id may be given too"
        )
    net, digests = load_eagle(found, model)
    model.drafters[checkpoint] = net
    model.weights_sha256.update({f"{found}/{name}": value for name, value in digests.items()})
    return net
