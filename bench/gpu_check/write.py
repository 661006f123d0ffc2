"""The folder's two files for readers: verdicts.json for programs, README.md for people."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.gpu_check.stage import Figure, Verdict
from bench.records.schema import write_text

VERDICTS = "verdicts.json"


def save(out: Path, machine: Mapping[str, str], verdicts: Sequence[Verdict]) -> None:
    """After every stage, so that a card that is lost leaves what came before."""
    rows = [dataclasses.asdict(verdict) for verdict in verdicts]
    for row in rows:
        for figure in row["figures"]:
            figure["value"] = None if math.isnan(figure["value"]) else figure["value"]
    document = {"machine": dict(machine), "stages": rows}
    write_text(out / VERDICTS, json.dumps(document, indent=2) + "\n")
    write_text(out / "README.md", markdown(machine, verdicts))


def markdown(machine: Mapping[str, str], verdicts: Sequence[Verdict]) -> str:
    lines = ["# GPU check", ""]
    lines += [f"* {name}: {value or 'not known'}" for name, value in machine.items()]
    lines += ["", "| stage | verdict | seconds | note |", "|:--|:--|--:|:--|"]
    for verdict in verdicts:
        note = verdict.note.partition("\n")[0].replace("|", "\\|")
        lines.append(f"| {verdict.stage} | {verdict.verdict} | {verdict.seconds:.0f} | {note} |")
    lines += ["", "| figure | here | expected of an H200 |", "|:--|--:|:--|"]
    for verdict in verdicts:
        lines += [
            f"| {verdict.stage}: {f.name} | {shown(f)} | {f.expected} |" for f in verdict.figures
        ]
    return "\n".join([*lines, ""])


def shown(figure: Figure) -> str:
    value = "missing" if math.isnan(figure.value) else f"{figure.value:.3g} {figure.unit}".strip()
    return value if figure.fits else f"**{value}**"
