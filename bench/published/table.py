"""The papers' numbers: published.csv, read strictly.

One row is one result of one paper as one source gives it; `evidence` says which source. Empty cells
are settings or figures that the source does not state, never zeros. Units: speedup a ratio over
`baseline`, mal codes a target forward, latency_s seconds an image, clip a cosine in [0, 1],
precision and recall in [0, 1], hps 100 times a cosine.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.config.words import split
from bench.errors import BenchError, unknown

PACKAGED = Path(__file__).resolve().with_name("data")  # of an installed wheel, see setup.py
CHECKOUT = Path(__file__).resolve().parents[2] / "results" / "published"
DEFAULT = (PACKAGED if PACKAGED.is_dir() else CHECKOUT) / "published.csv"
SETTINGS = ("resolution", "temperature", "cfg", "top_k")
# name -> (lowest, highest) that can be
FIGURES: dict[str, tuple[float, float]] = {
    "speedup": (0.01, 1000),
    "mal": (1, 1000),
    "latency_s": (1e-6, 1e6),
    "fid": (0, 1000),
    "clip": (0, 1),
    "precision": (0, 1),
    "recall": (0, 1),
    "hps": (0, 100),
    "image_reward": (-10, 10),
}
COLUMNS = (
    "paper", "arxiv", "evidence", "model", "dataset", "resolution", "temperature", "cfg", "top_k",
    "gpu", "method", "params", "baseline", *FIGURES,
)  # fmt: skip
REQUIRED = ("paper", "arxiv", "evidence", "method")
WHOLE = ("resolution", "top_k")


class PublishedError(BenchError):
    """A file of published numbers that cannot be used; the message names the row and column."""


@dataclass(frozen=True)
class Published:
    """A row. "" and None: not stated. `line` counts from the header, which is line 1."""

    line: int
    paper: str
    arxiv: str
    evidence: str
    model: str
    dataset: str
    gpu: str
    method: str
    params: Mapping[str, float]
    baseline: str
    resolution: float | None
    temperature: float | None
    cfg: float | None
    top_k: float | None
    figures: Mapping[str, float]

    @property
    def label(self) -> str:
        """`LANTERN (k=1000, delta=0.3)`."""
        return f"{self.method} ({settings_text(self.params)})" if self.params else self.method

    @property
    def source(self) -> str:
        """`VVS 2511.13587, third-party note x2`."""
        return f"{self.paper} {self.arxiv}, {self.evidence}"


def settings_text(values: Mapping[str, float]) -> str:
    """`k=1000, delta=0.3`."""
    return ", ".join(f"{key}={value:g}" for key, value in values.items())


def load(path: Path = DEFAULT) -> list[Published]:
    """The rows of a file. Raises PublishedError naming the line and column of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PublishedError(
            f"cannot read {path} ({error}); give a table of published numbers with published=FILE"
        ) from error
    lines = list(csv.reader(text.splitlines()))
    if not lines:
        raise PublishedError(f"{path} is empty; expected the columns {', '.join(COLUMNS)}")
    _header(path, lines[0])
    rows = [_row(path, number, cells) for number, cells in enumerate(lines[1:], 2) if cells]
    if not rows:
        raise PublishedError(f"{path} holds no row below its header")
    _twins(path, lines)
    return rows


def _header(path: Path, found: list[str]) -> None:
    for name in found:
        if name not in COLUMNS:
            raise PublishedError(f"{path}, line 1: {unknown('column', name, COLUMNS)}")
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise PublishedError(f"{path}, line 1: the columns {', '.join(missing)} are missing")
    if tuple(found) != COLUMNS:
        raise PublishedError(f"{path}, line 1: expected the columns in the order {list(COLUMNS)}")


def _row(path: Path, number: int, cells: list[str]) -> Published:
    where = f"{path}, line {number}"
    if len(cells) != len(COLUMNS):
        raise PublishedError(f"{where}: expected {len(COLUMNS)} cells, found {len(cells)}")
    row = {name: cell.strip() for name, cell in zip(COLUMNS, cells, strict=True)}
    for name in REQUIRED:
        if not row[name]:
            raise PublishedError(f"{where}, column {name}: empty; every number keeps its source")
    if not re.fullmatch(r"\d{4}\.\d{5}", row["arxiv"]):
        raise PublishedError(
            f"{where}, column arxiv: expected an id such as 2410.03355, found {row['arxiv']!r}"
        )
    settings = {name: _setting(where, name, row[name]) for name in SETTINGS}
    figures = {
        name: _number(where, name, row[name], *limits)
        for name, limits in FIGURES.items()
        if row[name]
    }
    if not figures:
        raise PublishedError(f"{where}: no figure; one of {', '.join(FIGURES)} must be given")
    if "speedup" in figures and not row["baseline"]:
        raise PublishedError(f"{where}, column baseline: a speed-up needs what it is over")
    return Published(
        line=number,
        paper=row["paper"],
        arxiv=row["arxiv"],
        evidence=row["evidence"],
        model=row["model"],
        dataset=row["dataset"],
        gpu=row["gpu"],
        method=row["method"],
        params=_params(where, row["params"]),
        baseline=row["baseline"],
        resolution=settings["resolution"],
        temperature=settings["temperature"],
        cfg=settings["cfg"],
        top_k=settings["top_k"],
        figures=figures,
    )


def _setting(where: str, name: str, text: str) -> float | None:
    if not text:
        return None
    value = _number(where, name, text, 0, 1e6)
    if name in WHOLE and value != int(value):
        raise PublishedError(f"{where}, column {name}: expected a whole number, found {text!r}")
    return value


def _number(where: str, name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise PublishedError(
            f"{where}, column {name}: expected a number or nothing, found {text!r}"
        ) from error
    if not (math.isfinite(value) and low <= value <= high):
        raise PublishedError(
            f"{where}, column {name}: expected a number in [{low:g}, {high:g}], found {text}"
        )
    return value


def _params(where: str, text: str) -> dict[str, float]:
    """`k=1000 delta=0.3` as a mapping."""
    found: dict[str, float] = {}
    for key, value in ((word.key, word.value) for word in map(split, text.split())):
        if not key or value is None or key in found:
            raise PublishedError(
                f"{where}, column params: expected key=value words, each key once, found {text!r}"
            )
        found[key] = _number(where, f"params ({key})", value, -1e6, 1e6)
    return found


def _twins(path: Path, lines: list[list[str]]) -> None:
    first: dict[tuple[str, ...], int] = {}
    for number, cells in enumerate(lines, 1):
        key = tuple(cells)
        if cells and key in first:
            raise PublishedError(f"{path}, line {number}: the same as line {first[key]}; remove it")
        first[key] = number
