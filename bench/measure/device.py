"""The machine and the code that made a row: provenance, and the check that a device is there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.config.schema import BackendConfig
from bench.data.errors import ConfigError
from bench.data.version import checkout
from decoders.execution.cpu.processor import cpuinfo, vectors

NO_CHECKOUT = "not a checkout"  # in place of a commit
PACKAGES = (
    "lantern-bench", "torch", "transformers", "numpy", "pyarrow", "open_clip_torch",
    "torch-fidelity",
)  # fmt: skip
NVML = ("driver", "cuda", "sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz", "power_limit_w")


@dataclass(frozen=True)
class Provenance:
    """What the rows of this process share. git_commit: of the project's own repository, or
    NO_CHECKOUT; versions: package name -> version, and what NVML says of an NVIDIA card."""

    git_commit: str
    git_dirty: bool
    versions: dict[str, str]
    cpu: str
    gpu: str
    threads: int

    def machine(self) -> dict[str, str]:
        """What decides the times: rows of two machines must not share a folder."""
        return {"cpu": self.cpu, "gpu": self.gpu, "torch": self.versions["torch"]}


def prepare(backend: BackendConfig) -> torch.device:
    """The device of a backend, present and with its threads set.

    Raises ConfigError where the device is unknown or missing.
    """
    device = present(backend.device)
    cores = available_cores()
    if backend.threads > cores:
        raise ConfigError(
            f"backend.threads={backend.threads}, but this process may use {cores} cores; threads "
            "that wait for each other on one core are many times slower. "
            f"Set backend.threads={cores}"
        )
    torch.set_num_threads(backend.threads)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where graphs, events and kernels of our own are launched
    return device


def present(name: str, setting: str = "backend.device") -> torch.device:
    """The device of a name: cpu, cuda, rocm, mps or xpu, with or without `:<number>`.

    ROCm builds of torch call their devices cuda. Raises ConfigError where the name is unknown, or
    the device is not there.
    """
    kind, _, number = name.partition(":")
    if kind not in KINDS or not (number.isdigit() or number == ""):
        raise ConfigError(
            f"{setting}={name!r} is no device; use {', '.join(KINDS)}, or one of them with a "
            "number, as cuda:1"
        )
    count, wanted = KINDS[kind]()
    if int(number or 0) >= count:
        raise ConfigError(
            f"{setting}={name} is not there: this torch ({torch.__version__}) sees {count} {kind} "
            f"devices. Use {setting.removesuffix('.device')}=cpu, or install {wanted}"
        )
    own = "cuda" if kind == "rocm" else kind
    return torch.device(f"{own}:{number}" if number else own)


def _cuda() -> tuple[int, str]:
    """How many devices there are, and what there must be to have one."""
    hip = torch.version.hip is not None
    return 0 if hip else torch.cuda.device_count(), "a driver and a CUDA build of torch"


def _rocm() -> tuple[int, str]:
    hip = torch.version.hip is not None
    return torch.cuda.device_count() if hip else 0, "a ROCm driver and a ROCm build of torch"


def _mps() -> tuple[int, str]:
    return int(torch.backends.mps.is_available()), "torch on a Mac with Apple silicon"


def _xpu() -> tuple[int, str]:
    return torch.xpu.device_count(), "an Intel driver and an XPU build of torch"


KINDS: dict[str, Callable[[], tuple[int, str]]] = {
    "cpu": lambda: (1, "a CPU"),
    "cuda": _cuda,
    "rocm": _rocm,
    "mps": _mps,
    "xpu": _xpu,
}


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def provenance(device: torch.device) -> Provenance:
    """The state of code and machine now."""
    commit, dirty = checkout()
    gpu = _gpu(device)
    return Provenance(
        git_commit=commit or NO_CHECKOUT,
        git_dirty=dirty,
        versions={"python": platform.python_version(), **_versions(), **card_state(device)},
        cpu=_cpu(),
        gpu=gpu,
        threads=torch.get_num_threads(),
    )


def _gpu(device: torch.device) -> str:
    """The accelerator's name; "" on the CPU."""
    if device.type in ("cuda", "xpu"):
        return str(getattr(torch, device.type).get_device_name(device))
    return "Apple GPU" if device.type == "mps" else ""


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def _cpu() -> str:
    """Model name of the processor, as the kernel or the platform gives it, and the widest of its
    vector instructions: processors of one name may differ in them, and with them in every time."""
    info, kind = cpuinfo(), platform.processor() or platform.machine()
    part = next(iter(info.get("CPU part", [])), "")
    name = next(iter(info.get("model name", [])), " ".join([kind, part]).strip())
    widest = next(iter(vectors()), None)
    return name if widest is None else f"{name}, {widest}"


def card_state(device: torch.device) -> dict[str, str]:
    """What decides an NVIDIA card's times besides its name, `NVML` -> values now; nothing for
    another device. Two runs on one model of card can differ by a third because one is capped.
    NVML's Python package (nvidia-ml-py) is optional, and what is not known is ""."""
    if device.type != "cuda" or torch.version.hip is not None:
        return {}
    return dict.fromkeys(NVML, "") | {"cuda": torch.version.cuda or ""} | _nvml(device)


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
