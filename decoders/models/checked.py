"""The one check of every tensor that is loaded: its dtype, and that its values can be weights.

A quantised file or one whose tail was never written has the right names and shapes. It would decode
noise for hours, so it is refused with the names of the file and the tensor.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from decoders.api import DecoderError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def checked(tensor: Tensor, name: str, origin: Path | str) -> Tensor:
    """The tensor itself. Raises DecoderError for another dtype than `checked_dtype` allows, for no
    entries at all, for NaN or infinity, and for a matrix of zeros (a bias may be zero)."""
    checked_dtype(tensor, name, origin)
    if not tensor.numel():
        raise DecoderError(f"{origin}: the tensor {name} is empty, {list(tensor.shape)}")
    low, high = (float(value) for value in tensor.detach().aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DecoderError(
            f"{origin}: the tensor {name} holds NaN or infinity; the file is damaged or its "
            "training diverged: use another copy or an earlier one"
        )
    if tensor.ndim > 1 and low == high == 0 and not name.endswith("bias"):
        raise DecoderError(
            f"{origin}: the tensor {name} {list(tensor.shape)} holds only zeros; the file was not "
            "written to its end, or was never trained: download or write it again"
        )
    return tensor


def checked_dtype(tensor: Tensor, name: str, origin: Path | str) -> Tensor:
    """The tensor itself. Raises DecoderError where it is not dense floating point of a known
    width: quantised (int8, fp8), bool, complex, sparse."""
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES.values():
        kind = str(tensor.dtype).removeprefix("torch.")
        sparse = "" if tensor.layout == torch.strided else ", sparse"
        raise DecoderError(
            f"{origin}: the tensor {name} is {kind}{sparse}, expected {' or '.join(DTYPES)}; "
            "quantised and packed weights are not read: use the release in bfloat16 or float32"
        )
    return tensor
