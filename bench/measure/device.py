"""The machine and the code that made a row: provenance, and the check that a device is there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.config import BackendConfig
from bench.errors import ConfigError

PACKAGES = ("lantern-bench", "torch", "numpy", "pyarrow", "open_clip_torch", "torch-fidelity")


@dataclass(frozen=True)
class Provenance:
    """What the rows of this process share. versions: package name -> version."""

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
    try:
        device = torch.device(backend.device)
    except RuntimeError as error:
        raise ConfigError(
            f"backend.device={backend.device!r} is no device; use cpu, cuda or cuda:<number>"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(
                f"backend.device={backend.device} is not there: this torch ({torch.__version__}) "
                f"sees {count} CUDA devices. Use backend=cpu, or install a driver and a CUDA build"
            )
    elif device.type != "cpu":
        raise ConfigError(f"backend.device={backend.device} is not supported; use cpu or cuda")
    cores = available_cores()
    if backend.threads > cores:
        raise ConfigError(
            f"backend.threads={backend.threads}, but this process may use {cores} cores; threads "
            "that wait for each other on one core are many times slower. "
            f"Set backend.threads={cores}"
        )
    torch.set_num_threads(backend.threads)
    return device


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def provenance(device: torch.device) -> Provenance:
    """The state of code and machine now."""
    commit, dirty = _git()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return Provenance(
        git_commit=commit,
        git_dirty=dirty,
        versions={"python": platform.python_version(), **_versions()},
        cpu=_cpu(),
        gpu=gpu,
        threads=torch.get_num_threads(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def _cpu() -> str:
    """Model name of the processor, as the kernel or the platform gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git() -> tuple[str, bool]:
    """(commit, whether the tree differs from it); ("", False) outside a repository."""
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return "", False
    return commit, bool(git("status", "--porcelain"))
