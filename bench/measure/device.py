"""Provenance of a row (code, versions, CPU, GPU), and the check that a device is there."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import torch

from bench.config.schema import BackendConfig
from bench.errors import ConfigError
from bench.measure.meter import quota
from bench.measure.threads import require_threads
from bench.version import checkout
from decoders.cpu_info import cpuinfo, vectors

PACKAGES = (
    "lantern-bench", "torch", "transformers", "numpy", "pyarrow", "open_clip_torch",
    "torch-fidelity",
)  # fmt: skip
# By which OpenMP is told to bind its threads to cores, the first one as soon as torch is loaded.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
CARD = {  # what decides an NVIDIA card's times besides its name, by nvidia-smi's words for it
    "driver": "driver_version", "sm_clock_max_mhz": "clocks.max.sm", "power_limit_w": "power.limit",
}  # fmt: skip


@dataclass(frozen=True)
class Provenance:
    """What the rows of this process share. git_commit: of the project's own repository, or "not a
    checkout"; versions: package name -> version, and what nvidia-smi says of an NVIDIA card."""

    git_commit: str
    git_dirty: bool
    versions: dict[str, str]
    cpu: str
    gpu: str
    threads: int


def prepare(backend: BackendConfig) -> torch.device:
    """The device of a backend, with its threads set. Raises ConfigError where it is unknown or
    missing, or where there are fewer threads."""
    device = present(backend.device)
    cores = available_cores()
    if backend.threads > cores:
        if bound := [f"{name}={os.environ[name]}" for name in BINDING if name in os.environ]:
            raise ConfigError(
                f"{' and '.join(bound)} binds this process to {cores} of its cores, and "
                f"backend.threads={backend.threads} threads would wait for each other on them. "
                f"Run it with `env {' '.join(f'-u {name}' for name in BINDING)}` in front, or set "
                f"backend.threads={cores}"
            )
        raise ConfigError(
            f"backend.threads={backend.threads}, but this process may use {cores} cores; threads "
            "that wait for each other on one core are many times slower. "
            f"Set backend.threads={cores}"
        )
    require_threads(backend.threads)
    torch.set_num_threads(backend.threads)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where graphs and events are made
    return device


@cache
def first_process() -> int:
    """The process that asked for a device first. A fork of it has the same answer."""
    return os.getpid()


def require_unforked() -> None:
    """Raises ConfigError in a process that was forked behind its parent's computations."""
    if first_process() != os.getpid():
        raise ConfigError(
            "this process was forked after its parent had computed. PyTorch's threads stay behind "
            "in the parent, and it would wait for them for ever: start processes with spawn "
            '(multiprocessing.get_context("spawn")), or compute only after the fork'
        )


def present(name: str, setting: str = "backend.device") -> torch.device:
    """The device of a name: cpu or cuda, with or without `:<number>`. Raises ConfigError where the
    name is unknown, the device is not there, or this process was forked too late."""
    require_unforked()
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if match is None:
        raise ConfigError(
            f"{setting}={name!r} is no device that this project runs on; use cpu, cuda, or cuda "
            "with a number, as cuda:1"
        )
    # A ROCm build of torch calls its devices cuda too.
    count = 0 if torch.version.hip else torch.cuda.device_count()
    if name != "cpu" and int(match[1] or 0) >= count:
        raise ConfigError(
            f"{setting}={name} is not there: this torch ({torch.__version__}) sees {count} CUDA "
            f"devices. Use {setting.removesuffix('.device')}=cpu, or install a driver and a CUDA "
            "build of torch"
        )
    return torch.device(name)


def device_name(backend: BackendConfig) -> str:
    """The device of a backend in words. Raises ConfigError where it is missing."""
    device = present(backend.device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu()}, {backend.threads} threads"


def available_cores() -> int:
    """Cores that this process may run on, and has time for by a container's quota; at least 1."""
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota())))


def provenance(device: torch.device) -> Provenance:
    commit, dirty = checkout()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    versions = {"python": platform.python_version(), **dict.fromkeys(PACKAGES, "absent")}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return Provenance(
        git_commit=commit or "not a checkout",
        git_dirty=dirty,
        versions=versions | card_state(device),
        cpu=_cpu(),
        gpu=gpu,
        threads=torch.get_num_threads(),
    )


def _cpu() -> str:
    """Model name of the processor, as the kernel or the platform gives it, and the widest of its
    vector instructions: processors of one name may differ in them, and with them in every time."""
    info, kind = cpuinfo(), platform.processor() or platform.machine()
    part = next(iter(info.get("CPU part", [])), "")
    name = next(iter(info.get("model name", [])), " ".join([kind, part]).strip())
    widest = next(iter(vectors()), None)
    return name if widest is None else f"{name}, {widest}"


def card_state(device: torch.device) -> dict[str, str]:
    """The values of `CARD`, and the CUDA version of torch; nothing for another device. Two runs on
    one model of card can differ by a third because one is capped. What is not known is "". Its
    clock under work is in every timed row (`bench.measure.card`)."""
    if device.type != "cuda":
        return {}
    # By UUID where torch has one: CUDA_VISIBLE_DEVICES renumbers torch's devices.
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    which = f"--id={device.index or 0 if uuid is None else f'GPU-{uuid}'}"
    query = f"--query-gpu={','.join(CARD.values())}"
    command = ["nvidia-smi", which, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        values = [value.strip() for value in done.stdout.split(",")]
    except (OSError, subprocess.SubprocessError):  # no nvidia-smi, say in a container
        values = [""] * len(CARD)
    return {"cuda": torch.version.cuda or "", **dict(zip(CARD, values, strict=True))}
