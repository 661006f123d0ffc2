"""`python -m bench compare [study=NAME | run_dir=DIR | summary=FILE] [published=FILE]
[tolerance=0.1] [out=DIR]`: measured beside published, as text, Markdown, CSV and a plot.

Why no Hydra: a finished run is compared, and its study may need settings (a caption file) that are
not at hand where it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.words import fraction, given
from bench.console import say
from bench.errors import ConfigError, did_you_mean
from bench.os_errors import ready_folder

if TYPE_CHECKING:
    from bench.published.result import Result

RUNS = Path("results/runs")
SOURCES = ("study", "run_dir", "summary")
KEYS = (*SOURCES, "published", "tolerance", "out")


def cmd_compare(words: Sequence[str]) -> int:
    """Compares a run with the published numbers; writes compare.md, .csv, .svg and .png to out
    (default: compare/ in the run's folder, for a summary=FILE in the current one).

    Raises ConfigError, PublishedError, BenchError."""
    told = _settings(words)
    summary = _summary(told)
    ratio = fraction("tolerance", told.get("tolerance", "0.1"), "0.1 is 10 %")
    from bench.published import measured, names, table
    from bench.published.judge import Tolerance
    from bench.published.result import build
    from bench.published.write import terminal

    rows = table.load(Path(told["published"]) if "published" in told else table.DEFAULT)
    result = build(rows, measured.load(summary), names.load(), Tolerance(ratio=ratio))
    beside = Path("compare") if "summary" in told else summary.parent / "compare"
    folder = Path(told["out"]).expanduser() if "out" in told else beside
    ready_folder(folder)
    say(terminal(result))
    for path in save(result, folder):
        say(f"wrote {path}")
    return 0


def save(result: Result, folder: Path) -> list[Path]:
    """Writes the four files and returns their paths."""
    from bench.published import write
    from bench.records.schema import write_text
    from bench.report.plots import published as plot
    from bench.report.plots.style import save as save_plot

    folder.mkdir(parents=True, exist_ok=True)
    paths = [
        write_text(folder / "compare.md", write.markdown(result)),
        write_text(folder / "compare.csv", write.csv(result)),
    ]
    return [*paths, *save_plot(plot.draw(result), folder)]


def _settings(words: Sequence[str]) -> dict[str, str]:
    found = given(words, KEYS, "compare")
    chosen = [key for key in SOURCES if key in found]
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(chosen)} each name a run; keep one of them and leave out the other"
        )
    return found


def _summary(told: dict[str, str]) -> Path:
    """The summary.csv to compare; study= means results/runs/NAME, the default is study=main."""
    if "summary" in told:
        return Path(told["summary"])
    if "run_dir" in told:
        return Path(told["run_dir"]) / "summary.csv"
    name = told.get("study", "main")
    path = RUNS / name / "summary.csv"
    if not path.is_file():
        there = sorted(p.parent.name for p in RUNS.glob("*/summary.csv"))
        hint = did_you_mean(name, there) or "."
        raise ConfigError(
            f"study {name!r} has no {path}{hint} Finished here: {', '.join(there) or '(none)'}. "
            f"Run it first (python -m bench run study={name}), or name a folder with run_dir="
        )
    return path
