"""The papers' numbers: published.csv, and what its names are called here (names.yaml, and
`published` of conf/decoder).

One row is one result of one paper as one source gives it; `evidence` says which source. Empty cells
are settings or figures that the source does not state, never zeros. Units: speedup a ratio over
`baseline`, mal codes per target forward, latency_s seconds per image, clip a cosine in [0, 1],
precision and recall in [0, 1], hps 100 times a cosine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from bench.config.catalogue import groups, option
from bench.config.schema import PublishedConfig
from bench.data.errors import BenchError
from decoders.errors import DecoderError
from decoders.kinds import Amount, Count, Share, Within, fitted

PACKAGED = Path(__file__).resolve().with_name("data")  # of an installed wheel, see setup.py
CHECKOUT = Path(__file__).resolve().parents[2] / "results" / "published"
FOLDER = PACKAGED if PACKAGED.is_dir() else CHECKOUT
DEFAULT, NAMES = FOLDER / "published.csv", FOLDER / "names.yaml"
Guidance = Annotated[float, Within(0, 1e6)]
LABELS = {  # of the figures
    "speedup": "speed-up", "mal": "MAL", "latency_s": "s/image", "fid": "FID", "clip": "CLIP",
    "precision": "precision", "recall": "recall", "hps": "HPS", "image_reward": "ImageReward",
}  # fmt: skip
SETTING = ("method", "params", "baseline", "model", "temperature")  # that a figure is of


class PublishedError(BenchError):
    """A file of published numbers that cannot be used; the message names the row and column."""


@dataclass(frozen=True)
class Published:
    """A row. "" and None: not stated. params: the method's settings, `k=1000 delta=0.3`."""

    paper: str
    arxiv: str
    evidence: str
    method: str
    model: str = ""
    dataset: str = ""
    resolution: Count | None = None
    temperature: Guidance | None = None
    cfg: Guidance | None = None
    top_k: Amount | None = None
    gpu: str = ""
    params: str = ""
    baseline: str = ""
    speedup: Annotated[float, Within(0.01, 1000)] | None = None
    mal: Annotated[float, Within(1, 1000)] | None = None
    latency_s: Annotated[float, Within(1e-6, 1e6)] | None = None
    fid: Annotated[float, Within(0, 1000)] | None = None
    clip: Share | None = None
    precision: Share | None = None
    recall: Share | None = None
    hps: Annotated[float, Within(0, 100)] | None = None
    image_reward: Annotated[float, Within(-10, 10)] | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The figures that it states."""
        return {k: value for k in LABELS if (value := getattr(self, k)) is not None}

    @cached_property
    def settings(self) -> dict[str, float]:
        """`params` as a mapping. Raises PublishedError."""
        try:
            return {key: float(value) for key, value in (w.split("=") for w in self.params.split())}
        except ValueError as error:
            raise PublishedError(
                f"params: expected words such as k=1000, found {self.params!r}"
            ) from error

    @property
    def label(self) -> str:
        """`LANTERN (k=1000, delta=0.3)`."""
        return f"{self.method} ({settings_text(self.settings)})" if self.params else self.method


COLUMNS = tuple(field.name for field in fields(Published))


def settings_text(values: Mapping[str, float]) -> str:
    """`k=1000, delta=0.3`."""
    return ", ".join(f"{key}={value:g}" for key, value in values.items())


def load(path: Path = DEFAULT) -> list[Published]:
    """The rows of a file. Raises PublishedError naming the line and column of what is wrong."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (OSError, ValueError) as error:
        raise PublishedError(
            f"cannot read {path} ({error}); give a table of published numbers with published=FILE"
        ) from error
    rows = []
    for line, cells in enumerate(table.to_dict("records"), 2):
        given = {str(name): cell for name, cell in cells.items() if cell.strip()}
        try:
            row: Published = fitted("", given, Published, text=True)
            _require_whole(row)
        except (DecoderError, PublishedError) as error:
            raise PublishedError(f"{path}, line {line}: {error}") from error
        rows.append(row)
    return rows


def _require_whole(row: Published) -> None:
    if "" in row.settings or not row.figures or (row.speedup and not row.baseline):
        raise PublishedError(
            f"expected one of {', '.join(LABELS)}, and with a speed-up the baseline that it is over"
        )


def others(row: Published, figure: str, rows: Sequence[Published]) -> list[str]:
    """[`other sources give 0.93 (LANTERN)`]: of the same setting, where they contradict the
    row."""
    setting, value = (*SETTING, *["gpu"] * (figure == "latency_s")), row.figures[figure]
    same = [o for o in rows if all(getattr(o, name) == getattr(row, name) for name in setting)]
    apart = [o for o in same if o.figures.get(figure, value) != value]
    texts = dict.fromkeys(f"{o.figures[figure]:g} ({o.paper})" for o in apart)
    return [f"other sources give {', '.join(texts)}"] if texts else []


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
