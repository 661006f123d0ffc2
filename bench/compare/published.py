"""The papers' figures, and what their names are called here.

published.csv has one row per result of a paper, as one source gives it; `evidence` says which. An
empty cell is a setting or figure that the source does not state, never zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bench.config.methods import load_methods
from decoders.errors import DecoderError, unknown
from decoders.kinds import validate

HERE = Path(__file__).resolve()
PACKAGED = HERE.with_name("data")  # of an installed wheel, see setup.py
FOLDER = PACKAGED if PACKAGED.is_dir() else HERE.parents[2] / "results" / "published"
TABLE, NAMES = FOLDER / "published.csv", FOLDER / "names.yaml"
REQUIRED = ("paper", "arxiv", "evidence", "method")
TEXTS = (*REQUIRED, "model", "dataset", "gpu", "params", "baseline")
NUMBERS = ("images", "resolution", "temperature", "cfg", "top_k")
SAME = ["method", "params", "baseline", "model", "temperature", "metric"]  # of two sources
Names = Mapping[str, Mapping[str, Any]]
PARAMS = r"(\w+=-?\d+(\.\d+)?( (?=\w)|$))*"  # `k=1000 delta=0.3`


def load_names() -> Names:
    """Reads names.yaml, whose comments explain it, and adds `methods` (`bench.config.methods`).
    Raises DecoderError on a part that is no option."""
    names = validate(str(NAMES), yaml.safe_load(NAMES.read_text()), dict[str, dict[str, Any]])
    return {**names, "methods": load_methods()}


def read_cells(path: Path, columns: int) -> pd.DataFrame:
    """The cells of a CSV file as texts, line by line, blank ones too; "" where a line is short.
    columns: of the file, as messages say. Raises DecoderError for a line that is too long, and
    what is no text."""
    bad = pd.errors.ParserWarning  # of a first row that is too long
    try:
        with warnings.catch_warnings(action="error", category=bad):
            return pd.read_csv(
                path, dtype=str, keep_default_na=False, index_col=False, skip_blank_lines=False
            )
    except (ValueError, bad) as error:  # pandas' others are a ValueError, as that of other text is
        raise DecoderError(
            f"{path.name} must be a table of {columns} columns in UTF-8, found: "
            f"{str(error).strip()}; put a cell that has a comma in quotes"
        ) from error


def load_published(figures: Names, path: Path = TABLE) -> pd.DataFrame:
    """Reads published.csv, one row per figure: line, settings as texts, metric, `figure` (in words)
    and `published` in our unit; `sources`: what all sources give for it, where they differ. Raises
    DecoderError with the line and column of a cell that cannot be."""
    settings, metrics = [*TEXTS, *NUMBERS], [*figures]
    table = read_cells(path, len(settings + metrics))
    for name in table.columns.difference([*settings, *metrics]):
        raise DecoderError(f"{path.name}:1: {unknown('column', name, settings + metrics)}")
    table = table.reindex(columns=settings + metrics, fill_value="")

    def refuse(bad: pd.Series, column: str, expected: str) -> None:
        if bad.any():
            row: Any = bad.idxmax()
            where, cell = f"{path.name}:{row + 2}.{column}", table.at[row, column]
            raise DecoderError(f"{where} must be {expected}, found {cell!r}; correct it in {path}")

    for name in REQUIRED:
        refuse(table[name] == "", name, "given")
    refuse((table.baseline == "") & (table.speedup != ""), "baseline", "what the speed-up is over")
    refuse(~table.params.str.fullmatch(PARAMS), "params", "written as k=1000 delta=0.3")
    ranges = {name: (one["unit"], *one["range"]) for name, one in figures.items()}
    ranges |= dict.fromkeys(NUMBERS, ("a number", 0, 1e6))
    for name, (unit, least, most) in ranges.items():
        values = pd.to_numeric(table[name], errors="coerce")
        bad = (table[name] != "") & ~values.between(least, most)
        refuse(bad, name, f"{unit} from {least:g} to {most:g}")
        table[name] = values if name in metrics else values.map(as_number)
    table["line"] = table.index + 2
    long = table.melt(["line", *settings], metrics, "metric", "published")
    # The speed-up and MAL of a baseline over itself are 1 by definition.
    own = (long.method == long.baseline) & long.metric.isin(["speedup", "mal"])
    long = long[long.published.notna() & ~own].sort_values("line", kind="stable", ignore_index=True)
    long["published"] *= [figures[metric].get("scale", 1) for metric in long.metric]
    over = (" over " + long.baseline).where(long.metric == "speedup", "")
    long["figure"] = [figures[metric]["label"] for metric in long.metric] + over
    long["sources"] = long.published.map("{:g}".format) + " (" + long.paper + ")"
    gpu = long.gpu.where(long.metric == "latency_s", "")
    same = long.groupby([*(long[name] for name in SAME), gpu])
    every = same.sources.transform(lambda cells: "sources give " + ", ".join(dict.fromkeys(cells)))
    return long.assign(sources=every.where(same.published.transform("nunique") > 1, ""))


def as_number(value: Any) -> str:
    """Writes a setting: 1000.0 as 1000; "" where there is none."""
    if value is None or value != value:
        return ""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
