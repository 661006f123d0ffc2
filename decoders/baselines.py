"""Plain decoding, what decoders are held against, and the exact parts that may stand in a
composition for its own."""

from __future__ import annotations

from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import PartSpec
from decoders.loops.autoregressive import Autoregressive

EXACT = PartSpec("decoders.verify.exact.Exact")
DRAFTER = PartSpec("decoders.propose.drafters.eagle.Eagle")  # every small model has weights for it


def plain_decoding(model: ImageModel, sampling: Sampling) -> Decoder:
    """AR."""
    return Autoregressive(model, sampling)
