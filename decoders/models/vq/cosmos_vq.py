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

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.checkpoint import locate
from decoders.models.vq.tokenizer import NoTokenizer, PictureDecoder, VQTokenizer
from decoders.models.weights import sha256_of

LEVELS = (8, 8, 8, 5, 5, 5)
FILE = "decoder.jit"


def codebook() -> Tensor:
    """[64000, 6] float32, places in [-1, 1]; looked up by plain L2."""
    levels = torch.tensor(LEVELS)
    bases, half = levels.cumprod(0) // levels, levels // 2
    return (torch.arange(prod(LEVELS))[:, None] // bases % levels - half) / half


def load_cosmos(
    source: str | None, grid: int, device: torch.device
) -> tuple[VQTokenizer | NoTokenizer, dict[str, str]]:
    """The tokenizer, and the SHA-256 of its file. source: a folder or hub id with `decoder.jit`, or
    that file; None: codes and neighbours, no pictures. Raises DecoderError."""
    if source is None:
        why = f"no {FILE} is named; set model.tokenizer to a folder with it, or its hub id"
        return NoTokenizer(why, codebook().to(device)), {}
    place = locate(source, (FILE,), "Cosmos tokenizer")
    path = place / FILE if place.is_dir() else place
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

    def pictures(codes: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], of indices [B, 1, h, w] -> frames [B, 3, 1, H, W]."""
        frames: Tensor = net(codes[:, None])
        return frames[:, :, 0]

    vq = PictureDecoder(pictures, grid, codebook().to(device))
    return VQTokenizer(vq), {path.name: sha256_of(path)}
