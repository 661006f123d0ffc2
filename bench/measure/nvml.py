"""What decides an NVIDIA card's times besides its name: driver, CUDA, clocks and power limit.

Two runs on one model of card can differ by a third because one card is capped. NVML says so; its
Python package (nvidia-ml-py) is optional, and what is not known is "".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

NAMES = ("driver", "cuda", "sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz", "power_limit_w")


def card_state(device: torch.device) -> dict[str, str]:
    """`NAMES` -> values now; nothing for a device that is not NVIDIA's."""
    if device.type != "cuda" or torch.version.hip is not None:
        return {}
    return dict.fromkeys(NAMES, "") | {"cuda": torch.version.cuda or ""} | _nvml(device)


def _nvml(device: torch.device) -> dict[str, str]:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver library, say in a container
        return {}
    try:
        return _read(pynvml, device)
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, device: torch.device) -> dict[str, str]:
    """Every value by itself: a card or a user without the right to one still has the others."""
    try:
        handle = _handle(nvml, device)
    except nvml.NVMLError:
        return {}

    def said(ask: Callable[[], Any]) -> str:
        try:
            found = ask()
        except nvml.NVMLError:
            return ""
        return found.decode() if isinstance(found, bytes) else str(found)

    clock, most = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetMaxClockInfo
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    return {
        "driver": said(nvml.nvmlSystemGetDriverVersion),
        "sm_clock_mhz": said(lambda: clock(handle, sm)),
        "sm_clock_max_mhz": said(lambda: most(handle, sm)),
        "memory_clock_mhz": said(lambda: clock(handle, memory)),
        "power_limit_w": said(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000),
    }


def _handle(nvml: Any, device: torch.device) -> Any:
    """By UUID where torch has one: CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    return nvml.nvmlDeviceGetHandleByIndex(device.index or 0)
