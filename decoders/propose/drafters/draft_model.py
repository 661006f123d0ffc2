"""A smaller model as the drafter (2211.17192): a target of the same codes, prompts and grid.

It keeps a key/value cache of its own and reads the prompt itself. Nothing is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, Prefill, Target, completed, fits
from decoders.cache import KVCache, additive_mask
from decoders.errors import unknown
from decoders.models.loading.checkpoint import Checkpoint
from decoders.models.nets.body import BodyNet
from decoders.propose.drafters.common.drafter import NetDrafter, require_equal
from decoders.propose.drafters.common.sessions import CachedSession, NetInput

# How a model names a drafter that is loaded when first used.
Loading = Callable[[], tuple[Target, Checkpoint]]


class TargetSession(CachedSession):
    """Drafts of a target, ``net.body``: its head reads what ``net`` makes of its states."""

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        self.exit, self.body = self.net, self.net.body
        self.first_slot, self.target = self.body.prefix, self.body  # its head
        super().allocate(prefill, nodes)

    def _new_cache(self, rows: int, capacity: int) -> KVCache:
        cache: KVCache = self.body.new_cache(rows, capacity)
        return cache

    def read_prefix(self, prefill: Prefill) -> None:
        self.prefix[:, 0, : self.first_slot].copy_(
            additive_mask(prefill.text.row_mask(self.copies))
        )
        self.body.prefill(prefill.text, self.copies, self.cache)

    def _forward(self, inputs: NetInput) -> Tensor:
        positions = inputs.positions - self.first_slot
        states = self.body.forward_codes(
            inputs.codes, positions, inputs.slots, inputs.mask, self.cache
        )
        states = inputs.pick(states)
        out: Tensor = self.exit(states).to(states.dtype)
        return out


class Whole(BodyNet):
    """A target all of whose layers draft."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, state: Tensor) -> Tensor:
        return state


class DraftModel(NetDrafter):
    """checkpoint: a name in the model's drafters, whose value is a target or a `Loading`; None: a
    copy of the target, for checks. Raises DecoderError where it does not fit."""

    session = TargetSession

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        self.name = checkpoint or "copy"
        body = (
            copy.deepcopy(model.target) if checkpoint is None else drafter_target(model, checkpoint)
        )
        names = ("vocab_size", "length", "prefix")
        require_equal({n: (getattr(body, n), getattr(model.target, n)) for n in names})
        self.net = Whole(body)

    def __str__(self) -> str:
        return f"draft_model({self.name})"


def drafter_target(model: ImageModel, name: str) -> Any:
    """A target among the model's drafters, loaded once."""
    if name not in model.drafters:
        raise DecoderError(unknown(f"drafter of {model.name}", name, model.drafters))
    drafter = model.drafters[name]
    if not isinstance(drafter, nn.Module) and callable(drafter):
        drafter, opened = drafter()
        model.drafters[name] = drafter
        hashes = opened.sha256().items()
        model.weights_sha256.update({f"{name}/{file}": sha for file, sha in hashes})
    if not fits(drafter, Target):
        raise DecoderError(
            f"the drafter {name!r} of {model.name} is {type(drafter).__name__}, expected a target "
            "of the same codes (decoders.api.Target)"
        )
    return completed(drafter, Target)
