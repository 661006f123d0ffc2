"""Early-exit drafter: the target's own first layers, read by its own norm and head (FREE,
2310.05424).

Nothing is trained and nothing is stored: q is what the head makes of the state after layer n. A
target that was not trained for early exits drafts badly so; the drafter is there because any
library can build the very same one from the target's weights, which makes two implementations of
speculative decoding comparable. It keeps a key/value cache of its own and reads the prefix itself,
as an independent draft model would (2211.17192).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, TextFeatures
from decoders.cache import KVCache
from decoders.models.transformer import Transformer, empty
from decoders.propose.drafters.shared import CachedSession, NetDrafter
from decoders.training.states import transformer_of


def first_layers(target: Transformer, layers: int) -> Transformer:
    """A target of the first `layers` layers; every parameter and table is shared with `target`."""
    if not 1 <= layers <= target.cfg.layers:
        raise DecoderError(
            f"drafter.layers must be from 1 to {target.cfg.layers}, the target's layers, "
            f"found {layers}"
        )
    net: Transformer = empty(Transformer, replace(target.cfg, layers=layers))
    net.layers = nn.ModuleList(list(target.layers)[:layers])
    net.cls_embedding, net.tok_embeddings = target.cls_embedding, target.tok_embeddings
    net.norm, net.output = target.norm, target.output
    for name in target.tables():
        net.register_buffer(name, getattr(target, name), persistent=False)
    return net.eval()


class EarlyExitSession(CachedSession):
    """It reads codes, and the prefix as the target does."""

    def allocate(self, like: Tensor, nodes: int) -> None:
        self.start, self.target = self.net.prefix, self.net  # its head
        super().allocate(like, nodes)

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        return self.net.new_cache(rows, capacity)

    def _read(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        self.calls = 1
        self.prefix[:, 0, : self.start].copy_(text.row_mask(self.copies))
        self.net.prefill(text, self.copies, self.cache)

    def _forward(
        self, codes: Tensor, features: Any, slots: Tensor, places: Tensor, seen: Tensor
    ) -> Tensor:
        self.calls += 1
        return self.net.forward_codes(codes, places - self.start, slots, seen, self.cache)


class EarlyExit(NetDrafter):
    """The drafter as a part. ``layers``: how many of the target's layers it runs."""

    opens = EarlyExitSession

    def __init__(self, model: ImageModel, layers: int = 2) -> None:
        self.model, self.exit_layers = model, layers
        self.net = first_layers(transformer_of(model), layers)

    def __str__(self) -> str:
        return f"early_exit(layers={self.exit_layers})"
