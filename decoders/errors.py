"""What decoders raise."""

from __future__ import annotations


class DecoderError(ValueError):
    """A bad request to a decoder: says what was expected, what was found and what to do."""


class NumericalError(DecoderError):
    """NaN or infinity where logits or probabilities were expected."""
