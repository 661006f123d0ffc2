"""Float32 that is float32: on a GPU cuDNN's convolutions round their inputs to TF32 (10 bits of 23)
unless they are told not to, and pictures and metrics would differ from the processor's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside, products and convolutions in float32 round nothing to TF32. Also a decorator."""
    switches: tuple[Any, ...] = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = False
        yield
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed
