"""A run as the comparison sees it: summary.csv, and beside it records.parquet and study.json.

Only summary.csv is needed. The records give what it does not hold: times of every prompt (for the
interval of a ratio to another decoder than AR), intervals of MAL, top-k and the GPU's name.
study.json gives the prompt set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.describe import Described, read
from bench.errors import BenchError
from bench.judge.reseeds import reseed_of
from bench.records.schema import damaged, frame, other_version

if TYPE_CHECKING:
    import pandas as pd

NAN = math.nan
TEXT = ("study", "model", "decoder", "acceptance", "tree", "device", "status")
NUMBERS = ("temperature", "cfg", "n_latency", "n_quality", "latency_mean_s", "speedup", "mal")
RECORDS = (
    "decoder", "protocol", "status", "prompt_index", "seed", "block", "repeat", "seconds_total",
    "mal", "nfe", "top_k", "gpu", "disturbed", "cpu_others", "cpu_steal",
)  # fmt: skip
# A figure's name -> its column in summary.csv, and what to multiply a published one with.
COLUMNS = {
    "speedup": ("speedup", 1.0),
    "mal": ("mal", 1.0),
    "latency_s": ("latency_mean_s", 1.0),
    "fid": ("fid", 1.0),
    "clip": ("clip", 100.0),
    "precision": ("precision", 1.0),
    "recall": ("recall", 1.0),
    "hps": ("hps", 1.0),
}


@dataclass(frozen=True)
class Figure:
    """A measured number with its 95 % interval; NaN where there is none."""

    value: float = NAN
    lo: float = NAN
    hi: float = NAN

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.lo) or math.isnan(self.hi))


@dataclass(frozen=True)
class Measured:
    """A decoder's row. gpu, prompts "" and top_k, loop, drafter None: not known (tables of older
    versions say no loop and no drafter); features: name by figure; records: the rows of its images
    that came out, None where there is no such file."""

    decoder: str
    model: str
    rule: Described
    tree: Described
    temperature: float
    cfg: float
    top_k: float | None
    device: str
    gpu: str
    prompts: str
    images: int
    features: Mapping[str, str]
    figures: Mapping[str, Figure]
    records: pd.DataFrame | None = field(default=None, compare=False)
    loop: Described | None = None
    drafter: Described | None = None  # or the proposer in its place
    replayed: bool = False  # accepted lengths read off a recording


@dataclass(frozen=True)
class MeasuredRun:
    """failed: decoders without figures, with their status."""

    source: Path
    study: str
    rows: list[Measured]
    failed: dict[str, str]


def load(summary: Path) -> MeasuredRun:
    """The decoders of a summary.csv. Raises BenchError where it is missing or not one."""
    table = _with_weights(_read(summary), summary.with_name("quality.csv"))
    records = _records(summary.with_name("records.parquet"))
    study = _study(summary.with_name("study.json"))
    rows, failed = [], {}
    for line in table.to_dict("records"):
        name = str(line["decoder"])
        if reseed_of(name):
            continue
        if str(line["status"]).startswith("failed"):
            failed[name] = str(line["status"])
            continue
        own = None if records is None else records[records.decoder == name]
        rows.append(_row({str(key): value for key, value in line.items()}, own, study))
    if not rows:
        raise BenchError(f"{summary} has no decoder with figures; see its column status")
    return MeasuredRun(summary, str(table["study"].iloc[0]), rows, failed)


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise BenchError(
            f"there is no {path}; run the study first (python -m bench run study=...), or name "
            "the folder of another run"
        )
    try:
        table = pd.read_csv(path, keep_default_na=False, dtype=str)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not a readable table ({error})") from error
    missing = [name for name in (*TEXT, *NUMBERS) if name not in table]
    if missing or table.empty:
        what = f"lacks the columns {', '.join(missing)}" if missing else "has no rows"
        raise BenchError(f"{path} {what}; expected the summary.csv of a run")
    return table


def _records(path: Path) -> pd.DataFrame | None:
    """Rows of images that came out, None where there is no such file."""
    import pyarrow as pa

    if not path.is_file():
        return None
    if wrong := other_version(path):
        raise BenchError(wrong)
    if damaged(path):
        raise BenchError(f"{path} is damaged; run the study again, it resumes and mends it")
    try:
        rows = frame(path, RECORDS)
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise BenchError(
            f"{path} is not a readable records file ({error}); run the study again, it resumes"
        ) from error
    return rows[rows.status == "ok"]


def _study(path: Path) -> dict[str, Any]:
    from bench.plan.checkpoints import read_object

    return read_object(path) if path.is_file() else {}


def _row(line: dict[str, Any], records: pd.DataFrame | None, study: dict[str, Any]) -> Measured:
    figures = {name: _figure(line, column) for name, (column, _) in COLUMNS.items()}
    gpu, top_k = str(study.get("machine", {}).get("gpu", "")), None
    if records is not None and len(records):
        figures["mal"] = _mal(records, figures["mal"])
        gpu = str(records.gpu.iloc[0]) or gpu
        top_k = float(records.top_k.iloc[0])
    return Measured(
        decoder=str(line["decoder"]),
        model=str(line["model"]),
        rule=read(str(line["acceptance"])),
        tree=read(str(line["tree"])),
        temperature=_number(line, "temperature"),
        cfg=_number(line, "cfg"),
        top_k=top_k,
        device=str(line["device"]),
        gpu=gpu,
        prompts=str(study.get("config", {}).get("prompts", {}).get("name", "")),
        images=int(line["n_quality"] or 0),
        features=_features(line),
        figures=figures,
        records=records,
        loop=read(str(line["loop"])) if line.get("loop") else None,
        drafter=read(str(line["drafter"])) if line.get("drafter") else None,
        replayed=line.get("exactness") == "replayed",
    )


def _with_weights(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The columns of quality.csv, where a run has one: what each figure was made with, and HPS."""
    if not path.is_file():
        return table
    import pandas as pd

    own = pd.read_csv(path, keep_default_na=False, dtype=str)
    return table.merge(own.drop(columns="fid_features", errors="ignore"), on="decoder", how="left")


def _features(line: Mapping[str, Any]) -> dict[str, str]:
    """What each quality figure was made with. `<figure>_features` where the summary has it; the
    embedded CLIP is both FID's features and the CLIP score's network."""
    fid = str(line.get("fid_features", ""))
    own = {name: str(line.get(f"{name}_features", "")) for name in COLUMNS}
    own["fid"] = fid
    for name in ("precision", "recall"):
        own[name] = own[name] or str(line.get("prc_features", "")) or fid
    if fid.endswith("-clip"):
        own["clip"] = own["clip"] or fid
    return own


def _figure(line: Mapping[str, Any], column: str) -> Figure:
    return Figure(*(_number(line, column + end) for end in ("", "_lo", "_hi")))


def _number(line: Mapping[str, Any], column: str) -> float:
    """A cell as a number; NaN where it is absent, empty or no number."""
    try:
        return float(line.get(column) or NAN)
    except ValueError as error:
        raise BenchError(f"summary.csv, column {column}: not a number ({error})") from error


def _mal(records: pd.DataFrame, figure: Figure) -> Figure:
    """The summary's MAL with its bootstrap interval over images (the same rows, pooled alike)."""
    from bench.judge.paired import mal_interval

    found = mal_interval(records) if figure.known else None
    if found is None:
        return figure
    return Figure(figure.value, found.lo, found.hi)
