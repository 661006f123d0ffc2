"""`python -m bench compare [study=NAME | run_dir=DIR | summary=FILE] [published=FILE]
[tolerance=0.1] [out=DIR]`: measured beside published, as text, Markdown, CSV and a plot.

Why no Hydra: a finished run is compared, and its study may need settings (a caption file) that are
not at hand where it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import say
from bench.errors import ConfigError, nearest, unknown
from bench.os_errors import ready_folder

if TYPE_CHECKING:
    from bench.published.judge import Tolerance
    from bench.published.result import Result

RUNS = Path("results/runs")
SOURCES = ("study", "run_dir", "summary")
KEYS = (*SOURCES, "published", "tolerance", "out")


def cmd_compare(words: Sequence[str]) -> int:
    """Compares a run with the published numbers; writes compare.md, .csv, .svg and .png to out
    (default: compare/ in the run's folder, for a summary=FILE in the current one).

    Raises ConfigError, PublishedError, BenchError."""
    given = _settings(words)
    summary = _summary(given)
    tolerance = _tolerance(given.get("tolerance", "0.1"))
    from bench.published import measured, names, table
    from bench.published.result import build
    from bench.published.write import terminal

    rows = table.load(Path(given["published"]) if "published" in given else table.DEFAULT)
    result = build(rows, measured.load(summary), names.load(), tolerance)
    beside = Path("compare") if "summary" in given else summary.parent / "compare"
    folder = Path(given["out"]).expanduser() if "out" in given else beside
    ready_folder(folder)
    say(terminal(result))
    for path in save(result, folder):
        say(f"wrote {path}")
    return 0


def save(result: Result, folder: Path) -> list[Path]:
    """Writes the four files and returns their paths."""
    from bench.published import write
    from bench.records.schema import write_atomically
    from bench.report.plots import published as plot
    from bench.report.plots.style import save as save_plot

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in (("md", write.markdown(result)), ("csv", write.csv_text(result))):
        path = folder / f"compare.{name}"
        write_atomically(path, lambda file, text=text: file.write(text.encode("utf-8")))  # type: ignore[misc]
        paths.append(path)
    return [*paths, *save_plot(plot.draw(result), folder)]


def _settings(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not value:
            raise ConfigError(f"cannot read {word!r}; write key=value with a key of {KEYS}")
        if key not in KEYS:
            raise ConfigError(unknown("setting of compare", key, KEYS))
        found[key] = value
    chosen = [key for key in SOURCES if key in found]
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(chosen)} each name a run; keep one of them and leave out the other"
        )
    return found


def _summary(given: dict[str, str]) -> Path:
    """The summary.csv to compare; study= means results/runs/NAME, the default is study=main."""
    if "summary" in given:
        return Path(given["summary"])
    if "run_dir" in given:
        return Path(given["run_dir"]) / "summary.csv"
    name = given.get("study", "main")
    path = RUNS / name / "summary.csv"
    if not path.is_file():
        there = sorted(p.parent.name for p in RUNS.glob("*/summary.csv"))
        close = nearest(name, there)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ConfigError(
            f"study {name!r} has no {path}{hint}. Finished here: {', '.join(there) or '(none)'}. "
            f"Run it first (python -m bench run study={name}), or name a folder with run_dir="
        )
    return path


def _tolerance(text: str) -> Tolerance:
    from bench.published.judge import Tolerance

    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"tolerance must be a number, found {text!r}") from error
    if not (math.isfinite(value) and 0 <= value < 1):
        raise ConfigError(f"tolerance is a fraction in [0, 1), found {text}; 0.1 is 10 %")
    return Tolerance(ratio=value)
