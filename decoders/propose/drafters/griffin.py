"""GRIFFIN drafter (2502.11018): EAGLE's layer, which reads the code twice and has two outputs, one
for the distribution and one for the next step.

Fusion: x = fc[e ; f] as in EAGLE, e the code's embedding and f the feature; then
x + W2 swiglu(W1 norm[e ; x]), so that the code outweighs an inaccurate feature. Behind the layer's
output y stand two: `predict`, which the target's head reads, and `regress`, the feature that the
next step reads and the one that is held to be the target's: y + A y and y + B y.

Training leaves out what decoding does not reach: a position counts at a depth only where the code
was among the drafter's likeliest ones at all depths before (`LossConfig.aligned`). The paper takes
the best 3 of a text's vocabulary; image codes are flatter, so the recipe takes 64. Other choices:
the width of W1 is two thirds of the target's; W2, A and B start at 0, where the drafter is EAGLE;
the paper's further loss on the target's top 10 is left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import Prefill
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import swiglu
from decoders.propose.drafters.common.drafter import TrainedDrafter
from decoders.propose.drafters.common.eagle_learner import FeatureLearner, Head, untrained_net
from decoders.propose.drafters.common.sessions import EagleSession, NetInput
from decoders.training.states import Drafted


class GriffinNet(EagleNet):
    """The trained part."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        width, inner = config.width, 2 * config.width // 3
        self.norm = nn.RMSNorm(2 * width, config.norm_eps)
        self.inner = nn.Linear(2 * width, 2 * inner, bias=False)
        self.outer = nn.Linear(inner, width, bias=False)
        self.parts = nn.Linear(width, 2 * width, bias=False)
        for linear in (self.outer, self.parts):
            nn.init.zeros_(linear.weight)

    def mix(self, ids: Tensor, features: Tensor) -> Tensor:
        """See `EagleNet.mix`; `features` may have the last step's `predict` before them."""
        features = features[..., -self.config.width :]
        x = super().mix(ids, features)
        both = torch.cat([self.embed_tokens(ids).to(x.dtype), x], -1)
        return x + self.outer(swiglu(self.inner(self.norm(both))))

    def predict_and_regress(self, out: Tensor) -> Tensor:
        """The layer's output [..., D] -> `predict` and `regress`, [..., 2 D]."""
        return torch.cat([out, out], -1) + self.parts(out)


class GriffinSession(EagleSession):
    """EAGLE's session; per node there are both outputs, [R, 2 D]."""

    net: GriffinNet

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        super().allocate(prefill, nodes)
        rows, _, width = prefill.hidden.shape
        self.dtype = prefill.hidden.dtype
        self.features = torch.zeros(rows, nodes + 1, 2 * width, device=prefill.hidden.device)

    def _read_prefix(self, ids: Tensor, valid: Tensor, hidden: Tensor) -> None:
        super()._read_prefix(ids, valid, hidden.float())

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        return super().advance(hidden.float(), codes, count, position)

    def _forward(self, inputs: NetInput) -> Tensor:
        return self.net.predict_and_regress(super()._forward(inputs))

    def _logits(self, hidden: Tensor, depth: int) -> Tensor:
        return super()._logits(hidden.chunk(2, -1)[0].to(self.dtype), depth)


untrained = partial(untrained_net, kind=GriffinNet)


class Griffin(TrainedDrafter):
    session = GriffinSession
    untrained = staticmethod(untrained)


class GriffinLearner(FeatureLearner):
    untrained = staticmethod(untrained)

    def _run(self, *arguments: Any) -> Tensor:
        return self.net.predict_and_regress(super()._run(*arguments))

    def _drafted(self, positions: Tensor, out: Tensor) -> Drafted:
        predict, regress = out.chunk(2, -1)
        return Drafted(positions, predict, Head(self.target), states=regress)
