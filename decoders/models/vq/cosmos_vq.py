"""The Cosmos tokenizer's picture decoder (2501.03575; DV8x16x16): 64,000 codes, 16 pixels each.

Codes are those of finite scalar quantization (2309.15505): a code's number, written in the bases
8, 8, 8, 5, 5, 5, is its place on a grid of six axes. So the codebook follows from the levels alone.
The network is read as NVIDIA publishes it, a TorchScript program (`decoder.jit`), in its own
precision.

Sources: wdrink/SimpleAR, simpar/model/tokenizer/cosmos_tokenizer: modules/quantizers.py (the order
of the axes, places in [-1, 1]), video_lib.py (levels; indices [B, 1, h, w] in, frames [B, 3, 1, H,
W] in [-1, 1] out).
"""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.checkpoint import locate
from decoders.models.vq.llamagen_vq import to_unit
from decoders.models.vq.tokenizer import NoTokenizer, VQTokenizer
from decoders.models.weights import sha256_of

LEVELS = (8, 8, 8, 5, 5, 5)
FILE = "decoder.jit"


def codebook() -> Tensor:
    """[64000, 6] float32, places in [-1, 1]; looked up by plain L2."""
    levels = torch.tensor(LEVELS)
    bases, half = levels.cumprod(0) // levels, levels // 2
    return (torch.arange(prod(LEVELS))[:, None] // bases % levels - half) / half


class CosmosVQ:
    """net: `decoder.jit`, indices [B, 1, h, w] -> frames [B, 3, 1, H, W]. grid: codes per side. It
    does not encode."""

    encodes = False

    def __init__(self, net: Any, grid: int, device: torch.device) -> None:
        self.net, self.grid = net, grid
        self.codebook = self.raw_codebook = codebook().to(device)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, L] -> images [B, 3, H, W] float32 in [0, 1]."""
        return to_unit(self.net(codes.view(len(codes), 1, self.grid, -1))[:, :, 0])


def load_cosmos(
    source: str | None, grid: int, device: torch.device
) -> tuple[VQTokenizer | NoTokenizer, dict[str, str]]:
    """The tokenizer, and the SHA-256 of its file. source: a folder or hub id with `decoder.jit`, or
    that file; None: codes and neighbours, no pictures. Raises DecoderError."""
    if source is None:
        why = f"no {FILE} is named; set model.tokenizer to a folder with it, or its hub id"
        return NoTokenizer(why, codebook().to(device)), {}
    found = locate(source, (FILE,), "Cosmos tokenizer")
    path = found / FILE if found.is_dir() else found
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is old
            net = torch.jit.load(str(path), map_location=device).eval()
    except (RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DecoderError(
            f"Cosmos tokenizer: {path} cannot be read ({reason}); expected the TorchScript program "
            f"{FILE} of nvidia/Cosmos-1.0-Tokenizer-DV8x16x16"
        ) from error
    return VQTokenizer(CosmosVQ(net, grid, device)), {path.name: sha256_of(path)}
