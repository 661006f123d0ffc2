"""The papers' figures, and what their names are called here.

published.csv has one row per result of a paper, as one source gives it; `evidence` says which. An
empty cell is a setting or figure that the source does not state, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.catalogue import groups
from decoders.errors import DecoderError, unknown
from decoders.kinds import Count, validate

PACKAGED = Path(__file__).resolve().with_name("data")  # of an installed wheel, see setup.py
CHECKOUT = Path(__file__).resolve().parents[2] / "results" / "published"
FOLDER = PACKAGED if PACKAGED.is_dir() else CHECKOUT
TABLE, NAMES = FOLDER / "published.csv", FOLDER / "names.yaml"
LABELS = {
    "speedup": "speed-up", "mal": "MAL", "latency_s": "s/image", "fid": "FID", "clip": "CLIP",
    "precision": "precision", "recall": "recall", "hps": "HPS", "image_reward": "ImageReward",
}  # fmt: skip
NUMBERS = {  # the unit, and a range that a figure in another unit leaves
    "speedup": ("a ratio", 0.2, 50),
    "mal": ("codes per target forward", 1, 100),
    "latency_s": ("seconds per image", 0.05, 1000),
    "fid": ("a distance", 1, 500),
    "clip": ("a cosine", 0.1, 0.5),
    "precision": ("a share", 0.01, 1),
    "recall": ("a share", 0.01, 1),
    "hps": ("100 times a cosine", 10, 50),
    "image_reward": ("a score", -3, 3),
    "images": ("a count", 1, 10**6),
    "resolution": ("pixels", 64, 8192),
    "temperature": ("a number", 0, 10),
    "cfg": ("a number", 0, 100),
    "top_k": ("a count of codes (0: all)", 0, 10**6),
}
REQUIRED = ("paper", "arxiv", "evidence", "method")
TEXTS = (*REQUIRED, "model", "dataset", "gpu", "params", "baseline")
PARAMS = r"(\w+=-?\d+(\.\d+)?( (?=\w)|$))*"  # `k=1000 delta=0.3`
SAME = ["method", "params", "baseline", "model", "temperature", "metric"]  # of two sources


def load(path: Path = TABLE) -> pd.DataFrame:
    """Reads published.csv, one row per figure: line, settings as texts, `metric` and `published` in
    our unit (CLIP is 100 times a cosine); `sources`: what all sources give for it, where they
    differ. Raises DecoderError with the line and column of a cell that cannot be."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False).fillna("")
    if strange := sorted({*table.columns} - {*TEXTS, *NUMBERS}):
        name = unknown("column", strange[0], (*TEXTS, *NUMBERS))
        raise DecoderError(f"{path.name}:1: {name}")
    table = table.reindex(columns=[*TEXTS, *NUMBERS], fill_value="")

    def refuse(bad: pd.Series, column: str, expected: str) -> None:
        if bad.any():
            line, cell = bad.idxmax() + 2, table.at[bad.idxmax(), column]
            raise DecoderError(
                f"{path.name}:{line}.{column} must be {expected}, found {cell!r}; correct {path}"
            )

    for name in REQUIRED:
        refuse(table[name] == "", name, "given")
    refuse((table.baseline == "") & (table.speedup != ""), "baseline", "what the speed-up is over")
    refuse(~table.params.str.fullmatch(PARAMS), "params", "written as k=1000 delta=0.3")
    for name, (unit, least, most) in NUMBERS.items():
        values = pd.to_numeric(table[name], errors="coerce")
        bad = (table[name] != "") & ~values.between(least, most)
        refuse(bad, name, f"{unit} from {least:g} to {most:g}")
        table[name] = values if name in LABELS else values.map("{:g}".format, "ignore").fillna("")
    table["line"] = table.index + 2
    kept = [name for name in table if name not in LABELS]
    long = table.melt(kept, [*LABELS], "metric", "published").dropna(subset="published")
    # The speed-up and MAL of a baseline over itself are 1 by definition.
    long = long[(long.method != long.baseline) | ~long.metric.isin(["speedup", "mal"])]
    long = long.sort_values("line", kind="stable", ignore_index=True).assign(sources="")
    long["published"] *= long.metric.map({"clip": 100}).fillna(1)
    gpu = long.gpu.where(long.metric == "latency_s", "")
    for _, same in long.groupby([*SAME, gpu.rename("on")]):
        if same.published.nunique() > 1:
            each = dict.fromkeys(f"{one.published:g} ({one.paper})" for one in same.itertuples())
            long.loc[same.index, "sources"] = f"sources give {', '.join(each)}"
    return long


@dataclass(frozen=True)
class Method:
    """`published` in a decoder's YAML: its method in the papers.

    name: in published.csv; parts: options (tree: static) whose classes, and the loop of the YAML,
    make a decoder one of it; settings: of the authors' code, as another tree is another method;
    params: where the settings that papers state are here (k: acceptance.k)."""

    name: str
    parts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, float | str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """names.yaml, whose comments explain it. methods: `published` of conf/decoder by name, with
    classes for parts."""

    models: Mapping[str, Mapping[str, Any]]
    not_available: Mapping[str, str]
    prompts: Mapping[str, str]
    features: Mapping[str, list[str]]
    images: Count
    methods: Mapping[str, Method] = field(default_factory=dict)


def load_names() -> Names:
    """Reads names.yaml and conf/decoder. Raises DecoderError on a part that is no option."""
    import yaml

    options, methods = groups(), dict[str, Method]()
    for decoder, text in options["decoder"].items():
        config = yaml.safe_load(text)
        if "published" not in config:
            continue
        method: Method = validate(f"{decoder}: published", config["published"], Method)
        classes = {"loop._target_": config["loop"]["_target_"]}
        for part, option in method.parts.items():
            if option not in options.get(part, {}):
                known = unknown(part, option, options.get(part, ()))
                raise DecoderError(f"{decoder}: published: {known}")
            classes[f"{part}._target_"] = yaml.safe_load(options[part][option])["_target_"]
        methods[method.name] = replace(method, parts=classes)
    names: Names = validate(str(NAMES), yaml.safe_load(NAMES.read_text(encoding="utf-8")), Names)
    return replace(names, methods=methods)
