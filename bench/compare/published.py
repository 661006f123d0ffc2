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
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from bench.config.arguments import groups
from decoders.kinds import Amount, Count, Share, Within, validate

PACKAGED = Path(__file__).resolve().with_name("data")  # of an installed wheel, see setup.py
CHECKOUT = Path(__file__).resolve().parents[2] / "results" / "published"
FOLDER = PACKAGED if PACKAGED.is_dir() else CHECKOUT
TABLE, NAMES = FOLDER / "published.csv", FOLDER / "names.yaml"
Guidance = Annotated[float, Within(0, 1e6)]
LABELS = {  # of the figures
    "speedup": "speed-up", "mal": "MAL", "latency_s": "s/image", "fid": "FID", "clip": "CLIP",
    "precision": "precision", "recall": "recall", "hps": "HPS", "image_reward": "ImageReward",
}  # fmt: skip
SETTING = ("method", "params", "baseline", "model", "temperature")  # that a figure is of


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
        """`params` as a mapping."""
        return {key: float(value) for key, value in (w.split("=") for w in self.params.split())}

    @property
    def label(self) -> str:
        """Writes `LANTERN (k=1000, delta=0.3)`."""
        return f"{self.method} ({settings_text(self.settings)})" if self.params else self.method


def settings_text(values: Mapping[str, float]) -> str:
    """Writes `k=1000, delta=0.3`."""
    return ", ".join(f"{key}={value:g}" for key, value in values.items())


def load(path: Path = TABLE) -> list[Published]:
    """Reads published.csv. Raises DecoderError with the line and column of what is wrong."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    return [
        validate(f"{path.name}:{line}", {k: v for k, v in cells.items() if v}, Published, text=True)
        for line, cells in enumerate(table.to_dict("records"), 2)
    ]


def contradictions(row: Published, figure: str, rows: Sequence[Published]) -> list[str]:
    """Writes [`other sources give 0.93 (LANTERN)`] where those of the same setting contradict a
    row."""
    setting, value = (*SETTING, *["gpu"] * (figure == "latency_s")), row.figures[figure]
    same = [o for o in rows if all(getattr(o, name) == getattr(row, name) for name in setting)]
    apart = [o for o in same if o.figures.get(figure, value) != value]
    texts = dict.fromkeys(f"{o.figures[figure]:g} ({o.paper})" for o in apart)
    return [f"other sources give {', '.join(texts)}"] if texts else []


@dataclass(frozen=True)
class Method:
    """`published` in a decoder's YAML: its method in the papers.

    name: in published.csv; parts: how rows of summary.csv are recognised as it, by the first words
    of loop (speculative where it is not said), drafter, acceptance and tree; tree: its settings in
    the authors' code, as another tree is another method; params: the settings that papers state,
    and what they are here (k: acceptance.k)."""

    name: str
    parts: dict[str, str]
    tree: dict[str, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """names.yaml. models: by our name, {model: published name, resolution}; families: published
    name -> members; methods: `published` of conf/decoder by their names in published.csv."""

    models: Mapping[str, Mapping[str, Any]]
    families: Mapping[str, list[str]]
    prompts: Mapping[str, str]
    features: Mapping[str, list[str]]
    images: Annotated[int, Within(1)]
    methods: Mapping[str, Method] = field(default_factory=dict)

    def same_features(self, metric: str, name: str) -> bool:
        """Whether features or weights of this name are those of the papers' protocol."""
        words = set(re.split(r"[^a-z0-9.]+", name.lower()))
        return all(word in words for word in self.features.get(metric, ()))


def load_names() -> Names:
    """Reads names.yaml and the methods of conf/decoder."""
    import yaml

    methods: dict[str, Method] = {}
    for decoder, option in groups()["decoder"].items():
        written = yaml.safe_load(option).get("published")
        if written is not None:
            one = validate(f"{decoder}: published", written, Method)
            methods[one.name] = one
    names: Names = validate(str(NAMES), yaml.safe_load(NAMES.read_text(encoding="utf-8")), Names)
    return replace(names, methods=methods)
