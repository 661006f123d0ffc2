"""FREE (2310.05424) as a drafter: the target's own first layers with an exit that is trained.

The state after layer n, through the target's last norm, is scaled and goes through a residual
block; the target's head reads the sum. FREE trains the layers and the exits together; that would
make another target here, so the target stays frozen and the exit alone is learned, which is less
than FREE can do. It keeps a key/value cache of its own and reads the prefix itself, as a draft
model does (`decoders.propose.drafters.draft_model`).

Without a checkpoint the exit passes the state on unchanged: a plain early exit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel
from decoders.models.loading.checkpoint import empty
from decoders.models.nets.body import BodyNet
from decoders.models.nets.transformer import Transformer, transformer_of
from decoders.propose.drafters.common.drafter import NetLearner, TrainedDrafter
from decoders.propose.drafters.common.eagle_learner import Head
from decoders.propose.drafters.draft_model import TargetSession
from decoders.training.states import Drafted, States


def first_layers(target: Transformer, layers: int) -> Transformer:
    """A target of the first `layers` layers; every parameter and table is shared with `target`."""
    if not 1 <= layers <= target.config.layers:
        raise DecoderError(
            f"drafter.layers must be from 1 to {target.config.layers}, the target's layers, "
            f"found {layers}"
        )
    net: Transformer = empty(Transformer, replace(target.config, layers=layers))
    net.layers = nn.ModuleList(list(target.layers)[:layers])
    net.cls_embedding, net.tok_embeddings = target.cls_embedding, target.tok_embeddings
    net.norm, net.output = target.norm, target.output
    for name in target.tables():
        net.register_buffer(name, getattr(target, name), persistent=False)
    return net.eval()


class FreeNet(BodyNet):
    """The trained part: the exit. ``body``: the target's first layers, which are no part of the
    weights. Untrained it changes nothing."""

    def __init__(self, model: ImageModel, layers: int) -> None:
        super().__init__()
        target = transformer_of(model)
        self.config, self._body = target.config, (first_layers(target, layers),)
        self.register_buffer("after", torch.tensor(layers))  # kept with the weights
        self.scale = nn.Parameter(torch.ones(target.width))
        width = target.width
        self.inner, self.outer = (nn.Linear(width, width, bias=False) for _ in range(2))
        nn.init.zeros_(self.outer.weight)

    @property
    def body(self) -> Any:
        """In a tuple, as a module's own modules are its weights."""
        return self._body[0]

    def forward(self, x: Tensor) -> Tensor:
        """States [..., D] after the first layers and the target's norm -> what the head reads."""
        x = x.float()
        return self.scale * x + self.outer(F.silu(self.inner(x)))


class EarlyExit:
    """What drafter and learner share. layers: how many of the target's layers run before the exit,
    which is trained for that many."""

    net: Any

    def __init__(self, model: ImageModel, checkpoint: str | None = None, layers: int = 2) -> None:
        self.untrained, self.exit_layers = partial(FreeNet, layers=layers), layers
        self.note = ", untrained" if checkpoint is None else ""
        super().__init__(model, checkpoint)  # type: ignore[call-arg]
        after = layers if checkpoint is None else int(self.net.after)
        if after != layers:
            raise DecoderError(
                f"drafter {checkpoint!r} is an exit after {after} of the target's layers, found "
                f"drafter.layers={layers}; set drafter.layers={after}, or train one for {layers}"
            )

    def __str__(self) -> str:
        return f"free(layers={self.exit_layers}{self.note})"


class Free(EarlyExit, TrainedDrafter):
    session = TargetSession


class FreeLearner(EarlyExit, NetLearner):
    """Trains the exit. It reads codes and no states, so that a draft at any depth is that of its
    position: one depth (``loss.rollout=1``) trains all of them."""

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        net, codes, drafted = self.net, states.codes, []
        with torch.no_grad():
            read = net.body.hidden_states(states.text, codes, states.drop)[:, self.start :]
        for d, at in enumerate(self.levels(states, roots, depth), 1):
            drafted.append(Drafted(at + d, net(read[:, at + d]), Head(self.target)))
        return drafted
