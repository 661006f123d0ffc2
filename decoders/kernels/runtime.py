"""Whether Triton kernels can run on a device, and the reason where they cannot.

Triton compiles for CUDA and ROCm. On the CPU the kernels run only in Triton's interpreter
(TRITON_INTERPRET=1, read when Triton is imported), which is slow and meant for tests.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from decoders.api import DecoderError


def missing(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on `device`; None where they can."""
    try:
        programs = importlib.import_module("decoders.kernels.tree_attention_programs")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("triton"):
            raise
        return "the package triton is not installed (pip install triton)"
    if programs.INTERPRETED or device.type == "cuda":
        return None
    return (
        f"Triton kernels need a CUDA or ROCm device, found {device.type}; for a slow trial on the "
        "CPU set TRITON_INTERPRET=1 before Python starts"
    )


def programs(name: str, device: torch.device) -> ModuleType:
    """The module of device programs `decoders.kernels.<name>`.

    Raises DecoderError with the reason where they cannot run on `device`.
    """
    reason = missing(device)
    if reason is not None:
        raise DecoderError(f"kernels.{name}: {reason}, or choose another implementation")
    return importlib.import_module(f"decoders.kernels.{name}")


def power(count: int, least: int = 1) -> int:
    """The power of two that holds `count`, at least `least`."""
    return max(least, 1 << (count - 1).bit_length())


def processors(device: torch.device) -> int:
    """Streaming multiprocessors (compute units) of a GPU; 4 where there is none."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have on a GPU; a Hopper's where there is none."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 227 * 1024
    found = torch.cuda.get_device_properties(device)
    return int(max(found.shared_memory_per_block, found.shared_memory_per_block_optin))


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, which leaves its own stream current where the end of a broken recording
    fails; here the stream that was current is so again."""
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        torch.cuda.set_stream(before)


@contextmanager
def without_waits() -> Iterator[None]:
    """What waits for the device raises RuntimeError inside, as it would break a recording."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
