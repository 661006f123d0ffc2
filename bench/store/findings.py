"""findings.json: what of a run cannot be computed from its rows. The gate's reports, the scores of
its pictures, the rates of the machine, and the work of a forward of its target."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.data.errors import FolderError
from bench.data.files import write_text
from bench.measure.roofline import MachineRates, TargetWork
from decoders.errors import DecoderError
from decoders.kinds import validate

FINDINGS = "findings.json"
NAN = math.nan


@dataclass(frozen=True)
class Scores:
    """The quality columns of summary.csv; NaN where a figure could not be had.

    `..._features`: what the figures were made with; "" for the same as FID's. clip and hps: 100
    cos, the mean over images; clip_each: of every image, in their order; protocol: how they were
    measured.
    """

    fid: float = NAN
    fid_lo: float = NAN
    fid_hi: float = NAN
    fid_debiased: float = NAN
    fid_debiased_lo: float = NAN
    fid_debiased_hi: float = NAN
    fid_features: str = ""
    kid: float = NAN
    kid_lo: float = NAN
    kid_hi: float = NAN
    precision: float = NAN
    recall: float = NAN
    clip: float = NAN
    clip_lo: float = NAN
    clip_hi: float = NAN
    clip_each: tuple[float, ...] = ()
    hps: float = NAN
    prc_features: str = ""
    clip_features: str = ""
    hps_features: str = ""
    protocol: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What the gate says of a decoder: `text` in a table, and in full."""

    text: str
    detail: str
    figure: float = NAN
    expected: str = ""


@dataclass(frozen=True)
class Findings:
    """gate: by decoder; scores: by line of the summary; done: whether the run was judged and scored
    to its end. None: not measured."""

    machine: MachineRates | None = None
    work: TargetWork | None = None
    gate: dict[str, Verdict] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    done: bool = False


def read_findings(folder: Path) -> Findings:
    """The findings of a run; none where there is no such file. Raises FolderError."""
    path = folder / FINDINGS
    if not path.is_file():
        return Findings()
    try:
        read: Findings = validate(FINDINGS, json.loads(path.read_bytes()), Findings)
    except (ValueError, DecoderError) as error:
        raise FolderError(
            f"{path} is damaged ({error}); run the study again: it judges and scores what is there"
        ) from error
    return read


def write_findings(folder: Path, findings: Findings) -> None:
    """Writes findings.json, without what is not known."""
    text = json.dumps(_known(asdict(findings)), indent=1, sort_keys=True, allow_nan=False)
    write_text(folder / FINDINGS, text + "\n")


def _known(value: Any) -> Any:
    """The same without NaN, which is no JSON."""
    if not isinstance(value, Mapping):
        return value
    nan = {key for key, one in value.items() if isinstance(one, float) and math.isnan(one)}
    return {key: _known(one) for key, one in value.items() if key not in nan}
