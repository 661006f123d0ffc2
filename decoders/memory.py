"""Memory that a decoding step reads from end to end: in huge pages where the system grants them,
since small pages cost it as much again in lookups.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

HUGE = 2 * 2**20  # bytes of a huge page


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.zeros; on the CPU, from a huge page's size on, in huge pages where there are any."""
    count = torch.Size(shape).numel()
    size = -(-count * dtype.itemsize // HUGE) * HUGE
    if device.type != "cpu" or count * dtype.itemsize < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has no huge pages by default
    try:
        memory = mmap.mmap(-1, size + HUGE, flags)  # some whole huge pages lie within; all zeros
    except OSError:  # not that much at a time; PyTorch's own error names the bytes
        return torch.zeros(shape, dtype=dtype, device=device)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)
