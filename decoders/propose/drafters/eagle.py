"""EAGLE drafter (2401.15077, METHODS 3): one decoder layer that predicts the target's next feature.

Input at the place of a code: [embedding of the code ; target feature that predicted it], 2D -> D,
one layer without input norm, no final norm; the target's own head gives q. It runs on the
conditional and on the unconditional row, and its logits are guided like the target's. The
drafter's prefix is P - 1 positions (the target's prefix states but the last), with its rotary
table shifted by one accordingly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, Drafter, DraftSession, ImageModel, Sampling, TextFeatures
from decoders.cache import KVCache, aligned
from decoders.capability import RESTART, Capability, Known
from decoders.distribution import code_logits
from decoders.models.eagle_net import EagleNet
from decoders.models.transformer import prefix_mask
from decoders.propose.drafters.eagle_checkpoint import load_eagle


class EagleSession(Known, DraftSession):
    """Drafts for B images: its own key/value cache, and what is known of the tree's nodes.

    Everything is kept for the R rows (conditional, then unconditional), so that a draft copies only
    the new codes. Per node there are the predicted feature and its row of the attention mask: a
    child's row is its parent's with one more visible slot. Node i writes i slots behind the root.
    """

    known: ClassVar = {
        Capability.EAGLE_SESSION: ("advance", "expand", "_forward", "_logits"),
        **RESTART,
    }

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
        self.kernels = model.target.kernels  # the target's attention, if any
        rows = prefix_hidden.shape[0]
        self.start, self.max_new = model.target.prefix - 1, max_new  # P - 1
        weight = net.fc.weight
        device = weight.device
        capacity = aligned(self.start + model.target.length + max_new + nodes + 1)
        heads, head_dim = net.cfg.kv_heads, net.cfg.head_dim
        self.cache = KVCache(1, rows, capacity, heads, head_dim, weight.dtype, device)
        self.places = torch.arange(capacity, device=device)  # [S]
        self.prefix = torch.zeros(rows, 1, capacity, dtype=torch.bool, device=device)  # [R, 1, S]
        self.behind = self.places >= self.start  # [S], slots of the image's codes
        self.features = prefix_hidden.new_zeros(rows, nodes + 1, prefix_hidden.shape[-1])
        self.seen = torch.zeros(rows, nodes + 1, capacity, dtype=torch.bool, device=device)
        self.root_code = torch.zeros(text.batch, dtype=torch.long, device=device)
        self.root_slot = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._read(text, prefix_hidden)

    def restart(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        """See `decoders.api.DraftSession`. Features and masks of nodes are
        written before they are read."""
        self.cache.cleared()
        self._read(text, prefix_hidden)

    def _read(self, text: TextFeatures, prefix_hidden: Tensor) -> None:
        """Reads the images' prefix."""
        self.calls = 0
        rows, drop = text.paired(self.copies)
        mask = self.net.valid(rows, drop)  # [R, P - 1]
        self.prefix[:, 0, : self.start].copy_(mask)
        if self.start:
            self._read_prefix(self.net.prefix_ids(rows, drop), mask, prefix_hidden)

    def _rows(self, values: Tensor) -> Tensor:
        """[B, ...] -> [R, ...]."""
        return values if self.copies == 1 else torch.cat([values] * self.copies)

    def _read_prefix(self, ids: Tensor, mask: Tensor, hidden: Tensor) -> None:
        size = self.start
        seen = F.pad(
            prefix_mask(mask, self.net.cfg), (0, self.cache.capacity - size)
        )  # [R, P - 1, S]
        slots = self.places[:size].expand(len(mask), -1)  # [R, P - 1]
        self.calls += 1
        self.net.step(ids, hidden[:, :size], slots, slots, seen, self.cache)

    def _forward(
        self, ids: Tensor, features: Tensor, slots: Tensor, places: Tensor, seen: Tensor
    ) -> Tensor:
        """ids, slots and places in the rotary table [R, T]; features [R, T, D]; seen [R, T, S]
        -> features [R, T, D]."""
        self.calls += 1
        return self.net.step(ids, features, places, slots, seen, self.cache, self.kernels)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        slots = self._rows((self.start + start)[:, None] + self.places[: codes.shape[1]])  # [R, T]
        seen = (self.behind & (self.places <= slots[..., None])) | self.prefix  # [R, T, S]
        ids = self.net.token_ids(self._rows(codes))
        out = self._forward(ids, hidden, slots, slots, seen)
        last = count[:, None] - 1  # [B, 1]
        self.root_code.copy_(codes.gather(1, last)[:, 0])
        last = self._rows(last)  # [R, 1]
        self.features[:, :1] = take(out, last)
        self.seen[:, :1] = take(seen, last)
        self.root_slot.copy_(slots.gather(1, last))  # [R, 1]
        return self._logits(self.features[:, :1], 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        codes, parents = self._rows(codes), self._rows(parents)  # [R, w]
        slots = self.root_slot + nodes  # [R, w]
        places = (self.root_slot + depth).expand_as(slots)  # by depth, not by slot
        seen = take(self.seen, parents) | (self.places == slots[..., None])  # [R, w, S]
        ids = self.net.token_ids(codes)
        out = self._forward(ids, take(self.features, parents), slots, places, seen)
        self.seen.index_copy_(1, nodes, seen)
        self.features.index_copy_(1, nodes, out)
        return self._logits(out, depth)

    def _logits(self, features: Tensor, depth: int) -> Tensor:
        """Guided logits [B, w, V] of the codes after nodes of one depth; features [R, w, D]."""
        batch = len(self.root_code)
        places = self.root_slot[:batch] - self.start + depth + 1  # [B, 1]
        return code_logits(self.target, features, self.cfg, places.expand(-1, features.shape[1]))


def take(values: Tensor, index: Tensor) -> Tensor:
    """values [R, n, C], index [R, w] -> [R, w, C]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


class Eagle(Drafter):
    """The drafter as a part: ``checkpoint`` names one of the model's drafters, or is a folder or
    hub id in the released layout."""

    def __init__(self, model: ImageModel, checkpoint: str = "eagle") -> None:
        self.net, self.model = net_of(model, checkpoint), model
        check_match(self.net, model.target)

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


def check_match(net: Any, target: Any) -> None:
    """Drafter and target must agree on width, vocabulary, image length and prefix, and a drafter
    that reads padded places needs a target in which their states are defined (`Target.prefill`)."""
    pairs = {
        "width": (net.cfg.width, target.width),
        "vocab": (net.cfg.vocab, target.vocab_size),
        "length": (net.cfg.length, target.length),
        "prefix": (net.cfg.prefix, target.prefix),
    }
    wrong = [f"{name}: drafter {a}, target {b}" for name, (a, b) in pairs.items() if a != b]
    if wrong:
        raise DecoderError(
            "drafter and target do not fit: "
            + "; ".join(wrong)
            + ". Train a drafter for this target, or pick the one it was made for"
        )
    if net.cfg.pads == "released" and target.cfg is not None and target.cfg.pads == "masked":
        raise DecoderError(
            'drafter and target do not fit: the drafter (pads="released") reads the states of '
            'padded prefix places, which mean something in a target with pads="released" alone '
            '(METHODS 6), found a target with pads="masked". Pick the drafter that was made for '
            "this target, or, if it never saw padded places in training, set "
            '"lantern_bench": {"pads": "masked"} in its config.json'
        )
