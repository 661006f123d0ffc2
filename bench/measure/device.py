"""Provenance of a row (code, versions, CPU, GPU), and the checks that a device and its threads are
there.

PyTorch asks OpenMP for a number of threads and takes it for granted. Batch systems limit it by
variables (OMP_THREAD_LIMIT, OMP_DYNAMIC), and with fewer threads oneDNN leaves a part of a product
undone: what comes out is NaN, or wrong. So the threads of a parallel region are counted.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import math
import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from bench.config.schema import BackendConfig
from bench.errors import ConfigError, plural
from bench.measure.card import uuid_of
from bench.measure.meter import quota
from bench.version import checkout
from decoders.cpu_info import cpuinfo, vectors

log = logging.getLogger(__name__)
PACKAGES = (
    "lantern-bench",
    "torch",
    "transformers",
    "numpy",
    "pyarrow",
    "open_clip_torch",
    "torch-fidelity",
)
# By which OpenMP is told to bind its threads to cores, the first one as soon as torch is loaded.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
CARD = {  # what decides an NVIDIA card's times besides its name, by nvidia-smi's words for it
    "driver": "driver_version",
    "sm_clock_max_mhz": "clocks.max.sm",
    "power_limit_w": "power.limit",
}
MAPS = Path("/proc/self/maps")  # the libraries that are loaded
OPENMP = re.compile(r"\S*/lib[gi]?omp\d*[-.][^/\n]*$", re.MULTILINE)  # of GCC, Intel and LLVM
LIMITS = (
    "OMP_THREAD_LIMIT",
    "OMP_DYNAMIC",
    "OMP_MAX_ACTIVE_LEVELS",
    "KMP_DEVICE_THREAD_LIMIT",
    "KMP_ALL_THREADS",
)


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
    missing, or where there are fewer cores or threads."""
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
    if (given := given_threads(backend.threads)) < backend.threads:
        raise ConfigError(
            f"backend.threads={backend.threads}, but OpenMP gives this process {given}"
            f"{_by_what()}: products would be left half done. Set backend.threads={given}, or "
            "raise the limit"
        )
    torch.set_num_threads(backend.threads)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where graphs and events are made
    return device


def given_threads(wanted: int) -> int:
    """How many threads a parallel region has that asks for `wanted`; `wanted` where that cannot be
    counted. OpenMP is told to change the number no more from region to region (OMP_DYNAMIC)."""
    try:
        library = OPENMP.search(MAPS.read_text())
        openmp = ctypes.CDLL(library[0]) if library else None
    except OSError:
        return wanted
    if openmp is None or not hasattr(openmp, "GOMP_parallel"):
        return wanted
    openmp.omp_set_dynamic(0)
    threads: list[None] = []
    count = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: threads.append(None))
    openmp.GOMP_parallel(count, None, ctypes.c_uint(wanted), ctypes.c_uint(0))
    return len(threads)


def use_given_threads() -> None:
    """Has torch use no more threads than OpenMP gives it, and says so where these are fewer."""
    wanted = torch.get_num_threads()
    if (given := given_threads(wanted)) < wanted:
        log.warning("OpenMP gives %d of %d threads%s; so many are used", given, wanted, _by_what())
        torch.set_num_threads(given)


def _by_what() -> str:
    """Names the variables that may limit them."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return f", by {' and '.join(limits)}" if limits else ""


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
    return f"{_cpu()}, {plural(backend.threads, 'thread')}"


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
    query = f"--query-gpu={','.join(CARD.values())}"
    command = ["nvidia-smi", f"--id={uuid_of(device)}", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        values = [value.strip() for value in done.stdout.split(",")]
    except (OSError, subprocess.SubprocessError):  # no nvidia-smi, say in a container
        values = [""] * len(CARD)
    return {"cuda": torch.version.cuda or "", **dict(zip(CARD, values, strict=True))}
