"""Tokenizers as `decoders.api.ImageTokenizer`: codes to pictures, and the space of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from decoders.api import DecoderError
from decoders.models.vq.llamagen_vq import LlamaGenVQ


class VQTokenizer:
    """A VQ model kept in float32: decoding costs little, rounding would show."""

    def __init__(self, vq: LlamaGenVQ) -> None:
        self.vq = vq
        self.codebook: Tensor = vq.codebook.detach()  # [V, C], the metric codes are looked up with
        self.raw_codebook: Tensor = vq.raw_codebook  # [V, C]

    def decode(self, codes: Tensor) -> Tensor:
        """[B, L] int64 -> [B, 3, H, W] float32 in [0, 1]."""
        return self.vq.decode(codes.to(self.codebook.device))


@dataclass(frozen=True)
class NoTokenizer:
    """A model whose tokenizer is not at hand: codes can be had, pictures and neighbours cannot."""

    folder: str
    files: Sequence[str]
    missing = True

    @property
    def codebook(self) -> Tensor:
        raise DecoderError(self._missing("neighbours of codes"))

    def decode(self, codes: Tensor) -> Tensor:
        raise DecoderError(self._missing("pictures"))

    def _missing(self, what: str) -> str:
        return (
            f"{what} need the VQ tokenizer, and none is in {self.folder}: put {self.files[0]} "
            "there, or set model.tokenizer to its path"
        )
