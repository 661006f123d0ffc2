"""The drafters that `make tiny` trains besides EAGLE, a line each; they are trained when they are
named (`python -m bench tiny hawk`). No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """One training. learner: dotted path of the class; options: what it and the drafter are built
    with. title: in the model card. minutes: where none are set. start: the drafter whose weights it
    begins with; None: from nothing. rate: factor of the learning rates. Few steps from a trained
    drafter ask for a low one: EAGLE's own warm start, at half, took 0.03 off its overlap in 860
    steps. loss: what differs from `decoders.tiny.recipes.drafter.FROM_NOTHING`."""

    learner: str
    title: str
    minutes: float = 10.0
    start: str | None = None
    rate: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)


_AT = "decoders.propose.drafters"
DRAFTERS = {
    # Seven of its own steps from the start, no term on features. Of the target's codes all count,
    # as the sampler cuts none off (`LossConfig.top_k` is the sampler's, where it does).
    "eagle3": Recipe(
        f"{_AT}.eagle3.Eagle3Learner",
        "EAGLE-3: features of three layers",
        start="eagle",
        rate=0.02,
        loss={"soft": 0.1, "rollout": 7, "roots": 16, "decay": 0.8},
    ),
    "hawk": Recipe(f"{_AT}.hawk.HawkLearner", "Hawk: horizontal and vertical heads"),
    "chimera": Recipe(f"{_AT}.chimera.ChimeraLearner", "Chimera: codes left, above, above-left"),
    "chimera_line": Recipe(
        f"{_AT}.chimera.ChimeraLearner",
        "Chimera: the last three codes, as in the paper",
        options={"context": "line"},
    ),
    "glide": Recipe(
        f"{_AT}.glide.GlideLearner", "GliDe: cross-attention on the target's last keys and values"
    ),
    "falcon": Recipe(
        f"{_AT}.falcon.FalconLearner",
        "Falcon: two codes a forward",
        loss={"regression": 1.0, "soft": 0.1},
    ),
    "griffin": Recipe(
        f"{_AT}.griffin.GriffinLearner",
        "GRIFFIN: the code told twice, masked training",
        start="eagle",
        rate=0.05,
        loss={"regression": 1.0, "soft": 0.1, "aligned": 64},
    ),
    "block": Recipe(f"{_AT}.block.BlockLearner", "DFlash: a block of masked places at once"),
    # All depths are one; an exit for two of the target's layers.
    "free": Recipe(
        f"{_AT}.free.FreeLearner", "FREE: a trained exit after two layers", loss={"rollout": 1}
    ),
}
