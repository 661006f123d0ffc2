"""Provenance in the files of the commands that measure without a report: its words and columns."""

from __future__ import annotations

from typing import Any

from bench.config.schema import StudyConfig
from bench.measure.clock import now
from bench.measure.device import Provenance


def place(config: StudyConfig) -> str:
    """The model and its backend in words, the start of a table's first line."""
    backend = config.backend
    return f"{config.model.name}, backend {backend.name} ({backend.device}, {backend.dtype})"


def setting_columns(config: StudyConfig) -> dict[str, Any]:
    """What was asked for, in every line of a CSV."""
    backend = config.backend
    return {
        "model": config.model.name, "backend": backend.name, "device": backend.device,
        "dtype": backend.dtype,
    }  # fmt: skip


def machine_columns(made: Provenance) -> dict[str, Any]:
    """What it ran on."""
    return {"threads": made.threads, "cpu": made.cpu, "gpu": made.gpu}


def code_columns(made: Provenance) -> dict[str, Any]:
    """What code ran, and when the line was written."""
    return {"git_commit": made.git_commit, "git_dirty": made.git_dirty, "made_at": now()}
