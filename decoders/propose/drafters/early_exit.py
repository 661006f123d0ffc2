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

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, Drafter, DraftSession, ImageModel, Sampling, TextFeatures
from decoders.cache import aligned
from decoders.capability import RESTART, Known
from decoders.distribution import code_logits
from decoders.models.transformer import Transformer, empty
from decoders.propose.drafters.eagle import take
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


class EarlyExitSession(Known, DraftSession):
    """Drafts for B images, kept as R rows. Node i of the tree writes i slots behind the root; what
    it may see is its parent's row of `seen` with its own slot."""

    known = RESTART

    def __init__(
        self, net: Transformer, text: TextFeatures, sampling: Sampling, max_new: int, nodes: int
    ) -> None:
        self.net, self.cfg, self.copies = net, sampling.cfg, sampling.guidance_rows
        self.prefix = net.prefix
        rows = self.copies * text.batch
        capacity = aligned(net.prefix + net.length + max_new + nodes + 1)
        self.cache = net.new_cache(rows, capacity)
        device = net.output.weight.device
        self.slots = torch.arange(capacity, device=device)  # [S]
        self.caption = torch.zeros(rows, 1, capacity, dtype=torch.bool, device=device)
        self.behind = self.slots >= net.prefix  # [S], slots of the image's codes
        self.seen = torch.zeros(rows, nodes + 1, capacity, dtype=torch.bool, device=device)
        self.root_code = torch.zeros(text.batch, dtype=torch.long, device=device)
        self.root_place = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._read(text)

    def restart(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        """See `decoders.api.DraftSession`."""
        del prefix_hidden  # its own first layers read the prefix
        self.cache.cleared()
        self._read(text)

    def _read(self, text: TextFeatures) -> None:
        """Reads the images' prefix."""
        self.calls = 1
        self.caption[:, 0, : self.prefix].copy_(text.row_mask(self.copies))
        self.net.prefill(text, self.copies, self.cache)

    def _rows(self, values: Tensor) -> Tensor:
        """[B, ...] -> [R, ...]."""
        return values if self.copies == 1 else torch.cat([values] * self.copies)

    def _forward(self, codes: Tensor, places: Tensor, slots: Tensor, seen: Tensor) -> Tensor:
        """codes, places, slots [R, T], seen [R, T, S] -> states [R, T, D]."""
        self.calls += 1
        return self.net.forward_codes(codes, places, slots, seen, self.cache)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        del hidden  # it reads codes, not the target's states
        places = self._rows(start[:, None] + self.slots[: codes.shape[1]])  # [R, T]
        slots = self.prefix + places
        seen = (self.behind & (self.slots <= slots[..., None])) | self.caption  # [R, T, S]
        out = self._forward(self._rows(codes), places, slots, seen)
        last = count[:, None] - 1  # [B, 1]
        self.root_code = codes.gather(1, last)[:, 0]
        last = self._rows(last)  # [R, 1]
        self.seen[:, :1] = take(seen, last)
        self.root_place = places.gather(1, last)  # [R, 1]
        return self._logits(take(out, last), 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        slots = self.prefix + self.root_place + nodes  # [R, w]
        places = (self.root_place + depth).expand_as(slots)  # by depth, not by slot
        seen = take(self.seen, self._rows(parents)).scatter_(2, slots[..., None], True)
        out = self._forward(self._rows(codes), places, slots, seen)
        self.seen.index_copy_(1, nodes, seen)
        return self._logits(out, depth)

    def _logits(self, hidden: Tensor, depth: int) -> Tensor:
        """Guided logits [B, w, V] of the codes after nodes of one depth; hidden [R, w, D]."""
        places = self.root_place[: len(self.root_code)] + depth + 1  # [B, 1]
        return code_logits(self.net, hidden, self.cfg, places.expand(-1, hidden.shape[1]))


class EarlyExit(Drafter):
    """The drafter as a part. ``layers``: how many of the target's layers it runs."""

    def __init__(self, model: ImageModel, layers: int = 2) -> None:
        target = transformer_of(model)
        self.net, self.exit_layers = first_layers(target, layers), layers

    def __str__(self) -> str:
        return f"early_exit(layers={self.exit_layers})"

    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> EarlyExitSession:
        del prefix_hidden  # its own first layers read the prefix
        return EarlyExitSession(self.net, text, sampling, max_new, nodes)
