"""A model whose codes are timed without making pictures of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from decoders.api import DecoderError, ImageModel


@dataclass(frozen=True)
class CodesOnly:
    """A tokenizer that keeps its codebook, which relaxed rules need, and draws nothing."""

    codebook: Tensor
    missing = True  # `decoders.api.ImageModel.draws`

    def decode(self, codes: Tensor) -> Tensor:
        raise DecoderError(f"no pictures are made here, found {tuple(codes.shape)} codes to draw")


def codes_only(model: ImageModel) -> ImageModel:
    """The model without pictures, so that neither time nor memory of the tokenizer is spent."""
    if not model.draws:
        return model
    return dataclasses.replace(model, tokenizer=CodesOnly(model.codebook))
