"""EAGLE drafter (2401.15077, METHODS 3): one decoder layer that predicts the target's next feature.

Input at the place of a code: [embedding of the code ; target feature that predicted it], 2D -> D,
one layer without input norm, no final norm; the target's own head gives q. It runs on the
conditional and on the unconditional row, and its logits are guided like the target's. Its net is
`decoders.models.nets.transformer.EagleNet`.
"""

from __future__ import annotations

import copy
from pathlib import Path

from decoders.api import ImageModel
from decoders.models.nets.transformer import EagleNet
from decoders.propose.drafters.common.drafter import NetDrafter, check_match, no_drafter
from decoders.propose.drafters.common.eagle_checkpoint import load_eagle, save_eagle
from decoders.propose.drafters.common.eagle_learner import FeatureLearner, fresh
from decoders.propose.drafters.common.sessions import EagleSession


class Eagle(NetDrafter):
    """The drafter as a part: ``checkpoint`` names one of the model's drafters, or is a folder or
    hub id in the released layout."""

    session = EagleSession

    def __init__(self, model: ImageModel, checkpoint: str = "eagle") -> None:
        self.net = net_of(model, checkpoint)
        check_match(self.net, model.target)


def net_of(model: ImageModel, checkpoint: str) -> EagleNet:
    """The net under a name of the model's drafters, loaded once however many decoders use it.

    Raises DecoderError where there is no such drafter, or its files are not what they should be.
    """
    source = model.drafters.get(checkpoint, checkpoint)
    if isinstance(source, EagleNet):
        return source
    named = checkpoint in model.drafters
    if not named and "/" not in source and not Path(source).exists():
        raise no_drafter(model, checkpoint, "A folder or a hub id may be given too")
    net, digests = load_eagle(source, model)
    model.drafters[checkpoint] = net
    model.weights_sha256.update({f"{source}/{name}": value for name, value in digests.items()})
    return net


class EagleLearner(FeatureLearner):
    """Trains `EagleNet`. checkpoint: a drafter to go on from (a name of the model's drafters, a
    folder or a hub id); None starts from random weights and the target's embedding."""

    untrained = staticmethod(fresh)

    def load(self, model: ImageModel, checkpoint: str) -> EagleNet:
        stored = net_of(model, checkpoint)
        check_match(stored, model.target)
        return copy.deepcopy(stored).requires_grad_(True)

    def save(self, folder: Path) -> str:
        """Writes the published layout."""
        return save_eagle(self.net, folder)
