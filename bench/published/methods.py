"""`python -m bench methods [RUN ...]`: every method in one Markdown table. What it is exact to,
what its released code does, what was published, and what it reaches in the runs that are named.

The words come from methods.yaml, published figures from published.csv, ours from each run's
summary.csv: the table of docs/decoders.md is its output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.words import given, split
from bench.console import say
from bench.os_errors import ready_file
from bench.published.table import DEFAULT, Published, PublishedError
from bench.published.table import load as load_published
from bench.report.table import interval, number

if TYPE_CHECKING:
    from bench.published.measured import Measured

FILE = DEFAULT.with_name("methods.yaml")
HEADINGS = ("method", "`decoder=`", "exact to", "released code", "published", "ours")
NOTHING = "-"


@dataclass(frozen=True)
class Method:
    """A line of methods.yaml; see there."""

    method: str
    decoders: Sequence[str]
    exact_to: str
    arxiv: str = ""
    released: str = NOTHING
    published: Sequence[str] = ()
    rows: Sequence[str] = ()

    @property
    def name(self) -> str:
        link = f"https://arxiv.org/abs/{self.arxiv}"
        return f"{self.method} ([{self.arxiv}]({link}))" if self.arxiv else self.method


def cmd_methods(words: Sequence[str]) -> int:
    """Prints the table; out=FILE also writes it. Raises ConfigError, PublishedError, BenchError."""
    runs = [Path(word) for word in words if split(word).value is None]
    told = given([word for word in words if split(word).value is not None], ("out",), "methods")
    out = Path(told["out"]).expanduser() if "out" in told else None
    if out:
        ready_file(out)
    text = table(load(), load_published(), runs)
    say(text)
    if out:
        from bench.records.schema import write_text

        write_text(out, text + "\n")
    return 0


def load(path: Path = FILE) -> list[Method]:
    """Reads the file. Raises PublishedError on a missing file or a wrong entry."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PublishedError(f"cannot read {path} ({error}); restore it from git") from error
    known = ", ".join(field.name for field in fields(Method))
    try:
        return [Method(**entry) for entry in found]
    except TypeError as error:
        raise PublishedError(
            f"{path}: expected a list of entries with the keys {known} ({error})"
        ) from error


def table(methods: Sequence[Method], rows: Sequence[Published], runs: Sequence[Path] = ()) -> str:
    """The Markdown table; without runs it has no column of ours."""
    from bench.published.measured import load as load_run

    found = [row for run in runs for row in load_run(run / "summary.csv").rows]
    lines = [
        (
            one.name,
            ", ".join(f"`{name}`" for name in one.decoders),
            one.exact_to,
            one.released,
            figures(one, rows),
            ours(one, found),
        )
        for one in methods
    ]
    width = len(HEADINGS) - (not runs)
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '/') for cell in line[:width])} |"
        for line in (HEADINGS, [":--"] * len(HEADINGS), *lines)
    )


def figures(method: Method, rows: Sequence[Published]) -> str:
    """Published speed-ups over AR: by model, lowest to highest, with who measured them."""
    groups: dict[str, list[Published]] = {}
    for row in rows:
        if row.method in method.published and row.baseline == "AR" and "speedup" in row.figures:
            greedy = ", greedy" * (row.temperature == 0)
            groups.setdefault(f"{row.model or 'model not named'}{greedy}", []).append(row)
    return "; ".join(_range(name, group) for name, group in sorted(groups.items())) or NOTHING


def _range(name: str, rows: Sequence[Published]) -> str:
    speeds = sorted({row.figures["speedup"] for row in rows})
    papers = ", ".join(sorted({row.paper for row in rows}))
    span = " to ".join(f"{speed:.2f}x" for speed in dict.fromkeys((speeds[0], speeds[-1])))
    return f"{name} {span} ({papers})"


def ours(method: Method, rows: Sequence[Measured]) -> str:
    """Speed-up with its interval and codes per forward of each of its decoders that was run; of
    several runs of one decoder the last that was named."""
    named = {row.decoder: row for row in rows}
    wanted = [*method.decoders, *method.rows]
    cells = [_cell(named[name].figures, name) for name in wanted if name in named]
    return "; ".join(cells) or NOTHING


def _cell(found: Mapping[str, Any], name: str) -> str:
    return f"`{name}` {interval(found['speedup'], 2)}x, {number(found['mal'].value, 2)} codes"
