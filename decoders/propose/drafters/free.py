"""FREE (2310.05424) as a drafter: the target's own first layers with an exit that is trained.

The state after layer n, through the target's last norm, is scaled and goes through a residual
block; the target's head reads the sum. Without it this is `decoders.propose.drafters.early_exit`,
of which it has the session. FREE trains the layers and the exits together; that would make another
target here, so the target stays frozen and the exit alone is learned, which is less than FREE can
do. Its rule for the length of a draft is a tree for any drafter
(`decoders.propose.trees.confident`). Its fit of the threshold on line, by EM on a mixture of two
beta laws, reads whether drafts were accepted, and is left out: the threshold is a setting.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel
from decoders.propose.drafters.eagle_learner import Head
from decoders.propose.drafters.early_exit import EarlyExitSession, first_layers
from decoders.propose.drafters.shared import NetLearner, Trained
from decoders.training.states import Drafted, States, transformer_of


class FreeNet(nn.Module):
    """The trained part: the exit. ``body``: the target's first layers, which are no part of the
    weights. It starts near the untrained exit."""

    def __init__(self, model: ImageModel, layers: int) -> None:
        super().__init__()
        target = transformer_of(model)
        self.cfg, self._body = target.cfg, (first_layers(target, layers),)
        self.register_buffer("after", torch.tensor(layers))  # kept with the weights
        self.scale = nn.Parameter(torch.ones(target.width))
        self.inner, self.outer = (
            nn.Linear(target.width, target.width, bias=False) for _ in range(2)
        )
        with torch.no_grad():
            self.outer.weight.mul_(0.1)

    @property
    def body(self) -> Any:
        """In a tuple, as a module's own modules are its weights."""
        return self._body[0]

    def forward(self, x: Tensor) -> Tensor:
        """States [..., D] after the first layers and the target's norm -> what the head reads."""
        x = x.float()
        return self.scale * x + self.outer(F.silu(self.inner(x)))


class FreeSession(EarlyExitSession):
    """As of the untrained exit, with the exit between layers and head."""

    def allocate(self, like: Tensor, nodes: int) -> None:
        self.exit, self.net = self.net, self.net.body
        super().allocate(like, nodes)

    def _forward(
        self, codes: Tensor, features: Any, slots: Tensor, places: Tensor, seen: Tensor
    ) -> Tensor:
        state = super()._forward(codes, features, slots, places, seen)
        return self.exit(state).to(state.dtype)


class OfLayers:
    """layers: how many of the target's layers it runs; the exit is trained for that many."""

    net: Any

    def __init__(self, model: ImageModel, checkpoint: str | None = None, layers: int = 2) -> None:
        self.made, self.exit_layers = partial(FreeNet, layers=layers), layers
        super().__init__(model, checkpoint)  # type: ignore[call-arg]
        after = layers if checkpoint is None else int(self.net.after)
        if after != layers:
            raise DecoderError(
                f"drafter {checkpoint!r} is an exit after {after} of the target's layers, found "
                f"drafter.layers={layers}; set drafter.layers={after}, or train one for {layers}"
            )

    def __str__(self) -> str:
        return f"free(layers={self.exit_layers})"


class Free(OfLayers, Trained):
    """The drafter as a part, see `Trained`."""

    opens = FreeSession


class FreeLearner(OfLayers, NetLearner):
    """Trains the exit. It reads codes and no states, so that a draft at any depth is that of its
    place: one depth (``loss.rollout=1``) trains all of them."""

    def draft(
        self, states: States, roots: Tensor, depth: int, noise: Tensor | None = None
    ) -> list[Drafted]:
        del noise
        net, codes, drafted = self.net, states.codes, []
        with torch.no_grad():
            read = net.body.hidden_states(states.text, codes, states.drop)[:, self.start :]
        every = torch.arange(codes.shape[1] - 1, device=codes.device)  # roots of depth 1
        for d in range(1, depth + 1):
            at = (every if d == 1 else roots) + d
            drafted.append(Drafted(at, net(read[:, at]), Head(self.target)))
        return drafted
