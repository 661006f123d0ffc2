"""What decoders are held against: plain decoding, and the exact parts that may stand in a
composition for its own."""

from __future__ import annotations

from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import PartSpec
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.gumbel import GumbelAutoregressive

EXACT = PartSpec("decoders.verify.exact.Exact")
SHARED = PartSpec("decoders.verify.gumbel.Gumbel")  # bit-exact: accepts what AR draws itself
DRAFTER = PartSpec("decoders.propose.drafters.eagle.Eagle")  # every small model has weights for it


def plain_decoding(model: ImageModel, sampling: Sampling, shared: bool = False) -> Decoder:
    """AR; shared: it draws with Gumbel numbers, as `SHARED` does."""
    return GumbelAutoregressive(model, sampling) if shared else Autoregressive(model, sampling)
