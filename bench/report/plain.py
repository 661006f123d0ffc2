"""Cells, Markdown tables, CSV lines, provenance and files of the commands that measure without a
report."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.config.schema import StudyConfig
from bench.measure.clock import now
from bench.measure.device import Provenance
from bench.records.schema import write_atomically
from metrics.stats import Interval

DASH = "—"
NONE = Interval(math.nan, math.nan, math.nan)


def number(value: float, digits: int) -> str:
    """A figure, or a dash for NaN."""
    return f"{value:.{digits}f}" if math.isfinite(value) else DASH


def interval(value: Interval, digits: int) -> str:
    """`1.23 [1.20, 1.26]`, or a dash for NaN."""
    if not math.isfinite(value.value):
        return DASH
    return f"{value.value:.{digits}f} [{value.lo:.{digits}f}, {value.hi:.{digits}f}]"


def escaped(text: str) -> str:
    """Without what would end a Markdown cell or start markup; on one line."""
    for char in "\\|*_<`":
        text = text.replace(char, "\\" + char)
    return " ".join(text.split())


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table, the first column to the left, figures to the right."""
    lines = ["| " + " | ".join(map(escaped, headers)) + " |"]
    lines.append("|:--" + "|--:" * (len(headers) - 1) + "|")
    lines += ["| " + " | ".join(map(escaped, row)) + " |" for row in rows]
    return "\n".join(lines)


def columns(name: str, value: Interval) -> dict[str, float]:
    """An interval as three columns of a CSV."""
    return {name: value.value, f"{name}_lo": value.lo, f"{name}_hi": value.hi}


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Lines of one set of keys, with a header."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Writes a file that is whole or absent; returns its path."""
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


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
