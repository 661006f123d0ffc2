"""What a call of the CPU kernel expects of the tensors that it is given by address."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.api import DecoderError


def require(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor, contiguous; DecoderError where it is of another shape or dtype, or not on the
    CPU."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise DecoderError(
            f"the CPU kernel expected {name} {list(shape)} in {dtype} on the CPU, found "
            f"{list(tensor.shape)} in {tensor.dtype} on {tensor.device}"
        )
    return tensor.contiguous()
