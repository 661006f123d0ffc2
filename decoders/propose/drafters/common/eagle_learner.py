"""EAGLE's layer in training: teacher-forced first drafts, deeper ones on its own features.

Depth 1 runs over the whole image at once: at the position of code j it reads [embedding of code j ;
state that predicted it] and predicts the next state. A deeper draft from root r reads the feature
that was drafted one depth above, and attends to the true entries up to r and to its own chain
behind it: what decoding does, and what HASS (2408.15766) trains on. The chains of several roots run
side by side, told apart by the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import ImageModel
from decoders.cache import GrowingCache
from decoders.distribution import DraftHead
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.transformer import (
    Transformer,
    attention_bias,
    prefix_mask,
    transformer_of,
)
from decoders.propose.drafters.common.drafter import NetLearner
from decoders.training.states import Drafted, States

Net = TypeVar("Net", bound=EagleNet)


@dataclass(frozen=True)
class Head(DraftHead):
    """The target's head for float32 features: without autocast a half-precision target takes its
    own dtype only."""

    target: Transformer

    @property
    def barred(self) -> Tensor | None:  # type: ignore[override]
        return self.target.barred

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return self.target.logits(hidden.to(self.target.output.weight.dtype))


class FeatureLearner(NetLearner):
    """Trains a net that has EAGLE's layer. checkpoint: a drafter of its kind to go on from, or the
    name of an EAGLE drafter of the model's, whose weights it starts with; None starts from random
    weights and the target's embedding."""

    def load(self, model: ImageModel, checkpoint: str) -> Any:
        stored = model.drafters.get(checkpoint)
        if type(stored) is not EagleNet:
            return super().load(model, checkpoint)
        net = self.untrained(model)
        weights = {name: value.float() for name, value in stored.state_dict().items()}
        net.load_state_dict(weights, strict=False)
        return net

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, entries = self.net, GrowingCache()
        start, text, codes = self.start, states.text, states.codes
        tokens = net.token_ids(codes)  # [R, L]
        ids = torch.cat([net.prefix_ids(text, states.drop), tokens], 1)[:, :-1]  # [R, P - 2 + L]
        features = self.read(states)[:, :-1]  # [R, P - 2 + L, D]
        valid = F.pad(net.valid(text, states.drop), (0, codes.shape[1] - 1), value=True)
        mask = prefix_mask(valid, net.config)  # [R, T, T], T = P - 2 + L
        out = self._run(ids, features, net.rope[: ids.shape[1]], mask, entries)[:, start:]
        positions = torch.arange(1, codes.shape[1], device=codes.device)
        drafted = [self._drafted(positions, out)]
        below = mask[:, start + roots]  # [R, m, T], what a root sees
        same = torch.eye(len(roots), dtype=torch.bool, device=roots.device)
        same = same.expand(len(codes), -1, -1)  # [R, m, m]
        out = out[:, roots]  # [R, m, D]
        for d in range(2, depth + 1):
            position = roots + d - 1  # [m], of the code that is read
            below = torch.cat([below, same], -1)  # [R, m, T + (d - 1) m]
            out = self._run(tokens[:, position], out, net.rope[start + position], below, entries)
            drafted.append(self._drafted(position + 1, out))
        return drafted

    def _drafted(self, positions: Tensor, out: Tensor) -> Drafted:
        return Drafted(positions, out, Head(self.target), states=out)

    def _run(
        self, ids: Tensor, features: Tensor, rope: Tensor, mask: Tensor, entries: Any
    ) -> Tensor:
        """ids [R, T], features [R, T, D], rope [T, d / 2], mask [R, T, S] -> features [R, T, D]."""
        return self._layer(self.net.mix(ids, features), rope, mask, entries)

    def _layer(self, x: Tensor, rope: Tensor, mask: Tensor, entries: Any) -> Tensor:
        """x [R, T, D], rope [T, d / 2], mask [R, T, S] -> features [R, T, D]."""
        bias = attention_bias(mask, torch.float32)
        return self.net.layers[0](x, rope, bias, 0, entries, x)


def untrained_net(model: ImageModel, kind: type[Net] | None = None) -> Net:
    """A drafter for the model's target with the target's embedding, float32. kind: None: that of
    the target's family."""
    target = transformer_of(model)
    net: Any = (
        EagleNet(target.config, target.config.tokens > 0) if kind is None else kind(target.config)
    )
    net.code_tokens = target.code_tokens
    with torch.no_grad():
        net.embed_tokens.weight.copy_(target.tok_embeddings.weight)
    return net
