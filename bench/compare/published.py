"""The papers' numbers: published.csv with its rows that contradict each other, and what its names
are called here (names.yaml, and `published` of conf/decoder).

One row is one result of one paper as one source gives it; `evidence` says which source. Empty cells
are settings or figures that the source does not state, never zeros. Units: speedup a ratio over
`baseline`, mal codes per target forward, latency_s seconds per image, clip a cosine in [0, 1],
precision and recall in [0, 1], hps 100 times a cosine.

Two rows speak of one thing where method, baseline, model, temperature, guidance, top-k and the
method's settings agree as far as both sources state them. Seconds need the same stated GPU too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from bench.config.catalogue import groups, option
from bench.config.schema import PublishedConfig
from bench.config.words import split
from bench.data.errors import BenchError, unknown
from decoders.errors import DecoderError
from decoders.kinds import Amount, Count, Share, Within, fitted

PACKAGED = Path(__file__).resolve().with_name("data")  # of an installed wheel, see setup.py
CHECKOUT = Path(__file__).resolve().parents[2] / "results" / "published"
FOLDER = PACKAGED if PACKAGED.is_dir() else CHECKOUT
DEFAULT, NAMES = FOLDER / "published.csv", FOLDER / "names.yaml"
Guidance = Annotated[float, Within(0, 1e6)]
SETTINGS = {"resolution": Count, "temperature": Guidance, "cfg": Guidance, "top_k": Amount}
FIGURES: dict[str, Any] = {
    "speedup": Annotated[float, Within(0.01, 1000)],
    "mal": Annotated[float, Within(1, 1000)],
    "latency_s": Annotated[float, Within(1e-6, 1e6)],
    "fid": Annotated[float, Within(0, 1000)],
    "clip": Share,
    "precision": Share,
    "recall": Share,
    "hps": Annotated[float, Within(0, 100)],
    "image_reward": Annotated[float, Within(-10, 10)],
}
LABELS = {
    "speedup": "speed-up", "mal": "MAL", "latency_s": "s/image", "fid": "FID", "clip": "CLIP",
    "precision": "precision", "recall": "recall", "hps": "HPS", "image_reward": "ImageReward",
}  # fmt: skip
COLUMNS = (
    "paper", "arxiv", "evidence", "model", "dataset", "resolution", "temperature", "cfg", "top_k",
    "gpu", "method", "params", "baseline", *FIGURES,
)  # fmt: skip
REQUIRED = ("paper", "arxiv", "evidence", "method")
KINDS = SETTINGS | FIGURES
Families = Mapping[str, Sequence[str]]  # a name that leaves the model open -> the models


class PublishedError(BenchError):
    """A file of published numbers that cannot be used; the message names the row and column."""


@dataclass(frozen=True)
class Published:
    """A row. "" and None: not stated. `line` counts from the header, which is line 1."""

    line: int
    paper: str
    arxiv: str
    evidence: str
    method: str
    params: Mapping[str, float]
    figures: Mapping[str, float]
    model: str = ""
    dataset: str = ""
    gpu: str = ""
    baseline: str = ""
    resolution: float | None = None
    temperature: float | None = None
    cfg: float | None = None
    top_k: float | None = None

    @property
    def label(self) -> str:
        """`LANTERN (k=1000, delta=0.3)`."""
        return f"{self.method} ({settings_text(self.params)})" if self.params else self.method


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
    header, *lines = [*csv.reader(text.splitlines())] or [[]]
    if tuple(header) != COLUMNS:
        other = next((name for name in header if name not in COLUMNS), None)
        wanted = f"expected the columns {', '.join(COLUMNS)}, in this order"
        what = unknown("column", other, COLUMNS) if other else wanted
        raise PublishedError(f"{path}, line 1: {what}")
    first: dict[tuple[str, ...], int] = {}
    rows = []
    for number, cells in enumerate(lines, 2):
        if not cells:
            continue
        twin = first.setdefault(tuple(cells), number)
        if twin != number:
            raise PublishedError(f"{path}, line {number}: the same as line {twin}; remove it")
        rows.append(_row(f"{path}, line {number}", number, cells))
    if not rows:
        raise PublishedError(f"{path} holds no row below its header")
    return rows


def _row(where: str, line: int, cells: list[str]) -> Published:
    if len(cells) != len(COLUMNS):
        raise PublishedError(f"{where}: expected {len(COLUMNS)} cells, found {len(cells)}")
    given = {name: cell.strip() for name, cell in zip(COLUMNS, cells, strict=True) if cell.strip()}
    for name in REQUIRED:
        if name not in given:
            raise PublishedError(f"{where}, column {name}: empty; every number keeps its source")
    try:
        row: dict[str, Any] = {
            name: fitted(f"{where}, column {name}", cell, KINDS.get(name, str), text=True)
            for name, cell in given.items()
        }
    except DecoderError as error:
        raise PublishedError(str(error)) from error
    if not re.fullmatch(r"\d{4}\.\d{5}", row["arxiv"]):
        raise PublishedError(
            f"{where}, column arxiv: expected an id such as 2410.03355, found {row['arxiv']!r}"
        )
    figures = {name: row.pop(name) for name in FIGURES if name in row}
    if not figures:
        raise PublishedError(f"{where}: no figure; one of {', '.join(FIGURES)} must be given")
    if "speedup" in figures and "baseline" not in row:
        raise PublishedError(f"{where}, column baseline: a speed-up needs what it is over")
    params = _params(where, row.pop("params", ""))
    return Published(line, params=params, figures=figures, **row)


def _params(where: str, text: str) -> dict[str, float]:
    """`k=1000 delta=0.3` as a mapping."""
    words = [split(word) for word in text.split()]
    try:
        params = {word.key: float(word.value or "") for word in words}
    except ValueError as error:
        raise PublishedError(f"{where}, column params: {error}, found {text!r}") from error
    if len(params) < len(words) or "" in params:
        raise PublishedError(
            f"{where}, column params: expected key=value words, each key once, found {text!r}"
        )
    return params


@dataclass(frozen=True)
class Names:
    """names.yaml. models: by our name, {model: published name, resolution}; families: published
    name -> members; methods: `published` of conf/decoder by their names in published.csv."""

    models: Mapping[str, Mapping[str, Any]]
    families: Mapping[str, list[str]]
    prompts: Mapping[str, str]
    features: Mapping[str, list[str]]
    images: Annotated[int, Within(1)]
    methods: Mapping[str, PublishedConfig] = field(default_factory=dict)

    def same_features(self, metric: str, name: str) -> bool:
        """Whether features or weights of this name are those of the papers' protocol."""
        words = set(re.split(r"[^a-z0-9.]+", name.lower()))
        return all(word in words for word in self.features.get(metric, ()))


def load_names(path: Path = NAMES) -> Names:
    """names.yaml and the methods of conf/decoder. Raises BenchError where they are damaged."""
    import yaml

    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PublishedError(f"cannot read {path} ({error}); restore it from git") from error
    methods: dict[str, PublishedConfig] = {}
    for decoder in groups()["decoder"]:
        written = yaml.safe_load(option("decoder", decoder)).get("published")
        if written is not None:
            one = fitted(f"{decoder}: published", written, PublishedConfig)
            methods[one.name] = one
    return replace(fitted(str(path), text, Names), methods=methods)


@dataclass(frozen=True)
class Disagreement:
    """rows: two or more, by line. sure False: only because a source leaves something unstated."""

    metric: str
    rows: tuple[Published, ...]
    sure: bool

    @property
    def text(self) -> str:
        """`published numbers disagree: 0.87..0.93 (VVS, LANTERN)`."""
        values = [row.figures[self.metric] for row in self.rows]
        papers = ", ".join(dict.fromkeys(row.paper for row in self.rows))
        may = "disagree" if self.sure else "disagree, or differ in what one of them does not state"
        return f"published numbers {may}: {min(values):g}..{max(values):g} ({papers})"

    @property
    def title(self) -> str:
        """What the rows speak of."""
        first = max(self.rows, key=lambda row: len(row.params) + (row.temperature is not None))
        over = f" over {first.baseline}" if self.metric == "speedup" else ""
        at = "" if first.temperature is None else f", temperature {first.temperature:g}"
        return f"{LABELS[self.metric]}{over} of {first.label} on {first.model}{at}"


def disagreements(rows: Sequence[Published], families: Families) -> list[Disagreement]:
    """Figures of one thing that differ: the largest groups of rows, each once."""
    groups: list[Disagreement] = []
    for metric in FIGURES:
        stated = [row for row in rows if metric in row.figures]
        by_lines: dict[frozenset[int], Disagreement] = {}
        for row in stated:
            group = tuple(o for o in stated if _may_match(row, o, metric, families))
            if len({other.figures[metric] for other in group}) > 1:
                sure = any(
                    _state_alike(a, b) and a.figures[metric] != b.figures[metric]
                    for a, b in product(group, group)
                )
                lines = frozenset(other.line for other in group)
                by_lines.setdefault(lines, Disagreement(metric, group, sure))
        groups += [
            one for lines, one in by_lines.items() if not any(lines < other for other in by_lines)
        ]
    return groups


def _may_match(one: Published, other: Published, metric: str, families: Families) -> bool:
    if one.method != other.method or not _same_model(one, other, families):
        return False
    if metric == "speedup" and one.baseline != other.baseline:
        return False
    if metric == "latency_s" and not (one.gpu and one.gpu == other.gpu):
        return False
    for name in SETTINGS:
        a, b = getattr(one, name), getattr(other, name)
        if a is not None and b is not None and a != b:
            return False
    return all(other.params[k] == v for k, v in one.params.items() if k in other.params)


def _same_model(one: Published, other: Published, families: Families) -> bool:
    """Equal, or one of a family and a member of it. A row without a model matches none."""
    if not one.model or not other.model:
        return one is other
    members = families.get(one.model, ()), families.get(other.model, ())
    return one.model == other.model or other.model in members[0] or one.model in members[1]


def _state_alike(one: Published, other: Published) -> bool:
    """Whether both state the same model, settings of sampling and settings of the method."""
    if one.model != other.model or dict(one.params) != dict(other.params):
        return False
    return one.temperature == other.temperature and one.temperature is not None
