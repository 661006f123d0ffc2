"""EAGLE-3 drafter (2503.01840), with HASS's aligned training (2408.15766): EAGLE's layer reads
features of several of the target's layers, and nothing holds what it predicts to be the target's.

The features of a position are one matrix, 2 C + D -> D, over a low, a middle and the last layer.
What a lower layer is given is read off the target's cache, as its values, so the target keeps
nothing more than it does anyway. A deeper draft reads the drafter's own output in the place of the
features, in decoding as in training. The loss has no term on features (`loss.regression=0`).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from decoders.api import Prefill
from decoders.cache import VALUES, Reads
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import TransformerConfig
from decoders.propose.drafters.common.drafter import TrainedDrafter
from decoders.propose.drafters.common.eagle_learner import FeatureLearner, untrained_net
from decoders.propose.drafters.common.sessions import EagleSession
from decoders.training.states import States


class Eagle3Net(EagleNet):
    """EAGLE's net behind a matrix that makes one feature of three. It starts as the last layer's
    alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.reads: Reads = (config.layers // 8, VALUES), (config.layers // 2, VALUES)
        inputs = (1 + len(self.reads)) * config.width
        self.fuse = nn.Linear(inputs, config.width, bias=False)
        with torch.no_grad():
            self.fuse.weight.zero_()
            self.fuse.weight[:, : config.width] = torch.eye(config.width)

    def fused(self, hidden: Tensor, values: Tensor) -> Tensor:
        """hidden [R, T, D], values of lower layers [R, T, n, C] -> features [R, T, D]."""
        return self.fuse(torch.cat([hidden, values.flatten(2).to(hidden.dtype)], -1))


class Eagle3Session(EagleSession):
    """EAGLE's session, whose features are made of more; a root's come with the committed codes."""

    net: Eagle3Net

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        super().allocate(prefill, nodes)
        self.target_cache = prefill.cache

    def _read_prefix(self, ids: Tensor, valid: Tensor, hidden: Tensor) -> None:
        slots = self.span[: hidden.shape[1]].expand(len(hidden), -1)  # [R, P]
        super()._read_prefix(ids, valid, self._fused(hidden, slots))

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        # The state that predicted the code at position j stands in the target's slot P - 1 + j.
        first = (self.first_slot + position)[:, None]
        slots = self._rows(first + self.span[: codes.shape[1]])  # [R, T]
        return super().advance(self._fused(hidden, slots), codes, count, position)

    def _fused(self, hidden: Tensor, slots: Tensor) -> Tensor:
        return self.net.fused(hidden, self.target_cache.read_slots(self.net.reads, slots))


untrained = partial(untrained_net, kind=Eagle3Net)


class Eagle3(TrainedDrafter):
    session = Eagle3Session
    untrained, reads_cache, dtype = staticmethod(untrained), True, None


class Eagle3Learner(FeatureLearner):
    untrained = staticmethod(untrained)

    @property
    def reads(self) -> Reads:
        return self.net.reads

    def read(self, states: States) -> Tensor:
        assert states.keys_values is not None
        return self.net.fused(super().read(states), states.keys_values.float())
