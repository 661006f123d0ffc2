"""What a training multiplies matrices in: bfloat16 where the machine has units for it.

Without them bfloat16 is software. On two AVX2 cores that were not quite idle, Muon's step for the
embedded target of 29 M took 149 s in bfloat16, and encoding 24 images 16 s, in float32 1.6 s.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16, or float32 on a processor that does not multiply bfloat16."""
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return torch.bfloat16


def mixed(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to `fast_dtype`."""
    if fast_dtype(device) == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
