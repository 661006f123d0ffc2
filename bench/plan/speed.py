"""What a plan assumes where nothing of the study was measured yet: how fast its backend is, and how
many codes its trees commit a step.

Speeds are those of `bench.plan.costs.ASSUMED`, by what the backend runs on: the CPU kernel where it
can be built and runs the model, with the processor's instructions for bfloat16 or without,
PyTorch's operators otherwise, or a GPU. Codes a step depend on weights and parts, not on the
machine: they are read off a committed run (results/tables) of the same model, parts and sampling,
where there is one.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.plan.checkpoints import read_object
from bench.plan.costs import ASSUMED_MAL, ASSUMED_WAIT, BYTES, Shape, Speed
from decoders.execution.cpu.processor import DOT, vectors

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "results" / "tables"


@dataclass(frozen=True)
class Committed:
    """Codes that a decoder committed a step in the committed run of this folder."""

    mal: float
    folder: Path


def speed_of(config: StudyConfig, shape: Shape | None, assumed: Mapping[str, Speed]) -> Speed:
    """The assumed speed of what runs the study's layers. Without instructions for bfloat16 its
    products are PyTorch's slowest, and the kernel multiplies in float32."""
    if config.backend.device.partition(":")[0] != "cpu":
        return assumed["cuda"]
    half, dot = config.backend.dtype == "bfloat16", DOT in vectors()
    if not _in_kernel(config, shape):
        return assumed["cpu_plain" if half and not dot else "cpu"]
    return assumed["cpu_kernel" if half and dot else "cpu_kernel_plain"]


def _in_kernel(config: StudyConfig, shape: Shape | None) -> bool:
    """Whether the layers run in the CPU kernel, as far as their shape tells
    (`decoders.execution.cpu.packing.reason` looks at the loaded model)."""
    if config.backend.layers != "native" or shape is None:
        return False
    from decoders.execution.cpu.layers import MOST

    return not shape.qk_norm and shape.blocks * BYTES[config.backend.dtype] <= MOST


def committed(config: StudyConfig, tables: Path | None = None) -> dict[str, Committed]:
    """By name the study's decoders with a tree that a committed run had too, whatever it called
    them. tables: where committed runs are (None: `TABLES`)."""
    tables = TABLES if tables is None else tables
    plain = dataclasses.asdict(config)
    wanted = {e["name"]: _identity(plain, e) for e in plain["decoders"] if e["spec"]["tree"]}
    found: dict[str, Committed] = {}
    for study in sorted(tables.glob("*/study.json")):
        there = read_object(study).get("config", {})
        mals = _mals(study.parent / "summary.csv")
        known = {_identity(there, e): mals.get(e["name"]) for e in there.get("decoders", [])}
        for name, identity in wanted.items():
            mal = known.get(identity)
            if mal:
                found.setdefault(name, Committed(mal, study.parent))
    return found


def _identity(study: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """What decides how many codes a decoder commits: model, parts and sampling."""
    parts = {key: value for key, value in entry["spec"].items() if key != "name"}
    return json.dumps([study.get("model"), parts, entry["sampling"]], sort_keys=True)


def _mals(summary: Path) -> dict[str, float]:
    """Codes a step by decoder; those that have any."""
    if not summary.is_file():
        return {}
    with summary.open(newline="", encoding="utf-8") as file:
        return {row["decoder"]: float(row["mal"]) for row in csv.DictReader(file) if row["mal"]}


def _shown(folder: Path) -> str:
    """A folder as a reader of this project knows it."""
    return str(folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder)


def assumption_lines(
    speed: Speed, drawn: Mapping[str, Committed], trees: int, batched: bool
) -> list[str]:
    """What was assumed. drawn: of `committed`, for as many of the study's `trees`."""
    lines = [f"  assumed: {speed}"]
    if not trees:
        return lines
    folders = sorted({_shown(one.folder) for one in drawn.values()})
    words = [f"for {len(drawn)} of {trees} trees as in {', '.join(folders)}"] if drawn else []
    if len(drawn) < trees:
        words.append(f"{ASSUMED_MAL:g} for {'the others' if drawn else 'all trees'}")
    wait = f"; a batch takes {ASSUMED_WAIT:g} times the steps, waiting for its slowest image"
    return [*lines, f"  codes a step: {', '.join(words)}{wait if batched else ''}"]
