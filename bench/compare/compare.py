"""`python -m bench compare [study=NAME | run_dir=DIR] [published=FILE] [tolerance=0.1] [out=DIR]`:
a run and the published numbers, as text, Markdown and CSV.

Why no Hydra: a finished run is compared, and its study may need settings (a caption file) that are
not at hand where it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.compare.published import DEFAULT, load_names
from bench.compare.published import load as load_published
from bench.compare.verdicts import ABSOLUTE, Comparison, Reproduction, Result, build
from bench.config.words import settings
from bench.console import say
from bench.data.errors import ConfigError, did_you_mean
from bench.data.files import ready_folder, write_text
from bench.records.load import load
from bench.records.run_data import Role
from bench.report import table
from bench.report.table import Column
from decoders.kinds import Within

RUNS = Path("results/runs")
NAMED = 3  # papers in a line
DIGITS = {"clip": 2, "precision": 3, "recall": 3, "image_reward": 4}
NO_MODEL = "No published row is about this model: nothing is reproduced or refuted by this run."


@dataclass(frozen=True)
class CompareSettings:
    """The settings of `cmd_compare`."""

    study: str | None = None
    run_dir: Path | None = None
    published: Path = DEFAULT
    tolerance: Annotated[float, Within(0, 1, below=True)] = 0.1
    out: Path | None = None


def cmd_compare(words: Sequence[str]) -> int:
    """A run and the papers' numbers: reproduced, or not, or why not comparable.
    Writes compare.md and compare.csv.

    settings:
      study=NAME      the run in results/runs/NAME (default: main)
      run_dir=DIR     or the run in this folder
      published=FILE  another table of published numbers
      tolerance=X     how far apart two figures may be, as a fraction (default: 0.1)
      out=DIR         where the files go (default: compare/ in the run's folder)

    example:
      python -m bench compare run_dir=results/runs/main tolerance=0.05
    """
    options = settings(CompareSettings, words)
    run = _run(options)
    rows = load_published(options.published)
    result = build(rows, load(run), load_names(), options.tolerance)
    folder = options.out or run / "compare"
    ready_folder(folder)
    say(terminal(result))
    for path in save(result, folder):
        say(f"wrote {path}")
    return 0


def _run(options: CompareSettings) -> Path:
    """The run's folder; study= means results/runs/NAME, the default is study=main."""
    if options.study and options.run_dir:
        raise ConfigError("study and run_dir each name a run; keep one of them")
    if options.run_dir:
        return options.run_dir
    name = options.study or "main"
    if not (RUNS / name / "summary.csv").is_file():
        there = sorted(p.parent.name for p in RUNS.glob("*/summary.csv"))
        hint = did_you_mean(name, there) or "."
        raise ConfigError(
            f"study {name!r} has no finished run in {RUNS}{hint} Finished here: "
            f"{', '.join(there) or '(none)'}. Run it first (python -m bench run study={name}), or "
            "name a folder with run_dir="
        )
    return RUNS / name


def save(result: Result, folder: Path) -> list[Path]:
    """Writes the files and returns their paths."""
    return [
        write_text(folder / "compare.md", markdown(result)),
        write_text(folder / "compare.csv", csv(result)),
    ]


def number(value: float, metric: str, sign: str = "") -> str:
    return f"{value:{sign}z.{DIGITS.get(metric, 2)}f}"


def measured_text(one: Comparison) -> str:
    """`1.45 [1.40, 1.51]`, a dash where nothing was measured."""
    figure, digits = one.figure, DIGITS.get(one.metric, 2)
    varies = figure.lo != figure.hi
    return table.interval(figure, digits) if varies else table.number(figure.value, digits)


def published_text(one: Comparison) -> str:
    """`LANTERN, abstract v3: LANTERN, tau 1` and the decoder that it is compared with."""
    row, tau = one.row, one.row.temperature
    text = f"{row.paper}, {row.evidence}: {row.label}"
    text += "" if tau is None else f", τ {tau:g}"
    return f"{text} ↔ {one.decoder}" if one.decoder else text


COLUMNS = (
    Column("", "published row", published_text, words=True),
    Column("label", "figure", words=True),
    Column("", "published", lambda one: number(one.published, one.metric)),
    Column("", "measured", measured_text),
    Column("", "difference", lambda one: (
        number(one.difference, one.metric, "+") if one.is_measured else table.ABSENT
    )),
    # An asterisk marks a verdict that rests on what the source does not state.
    Column("", "verdict", lambda one: f"{one.verdict}{'*' * bool(one.assumed)}", words=True),
)  # fmt: skip


def grounds(one: Comparison) -> str:
    """Why, and everything that qualifies it."""
    assumed = f"assumes {', '.join(one.assumed)}" if one.assumed else ""
    parts = [one.why, assumed, *one.caveats]
    return ". ".join(filter(None, parts))


def terminal(result: Result) -> str:
    """The comparable rows as a table, and what keeps the rest apart."""
    lines = [f"{result.run.study}: {result.run.folder}", counts(result)]
    compared = [c for c in result.comparisons if c.verdict is not Reproduction.NOT_COMPARABLE]
    if compared:
        lines += ["", table.terminal(table.table_of(COLUMNS, compared))]
    elif not result.shown():
        lines += ["", NO_MODEL]
    return "\n".join(
        [*lines, "", *(f"not comparable, {line}" for line in reasons(result))]
    ).rstrip()


def counts(result: Result) -> str:
    """`3 reproduced, 1 not reproduced, 20 not comparable`."""
    return ", ".join(f"{len(result.of(verdict))} {verdict}" for verdict in Reproduction)


def reasons(result: Result) -> list[str]:
    """`6 figures of A: other model`: the first obstacles of what is not comparable, those that
    keep most figures apart first."""
    groups: dict[str, list[Comparison]] = {}
    for item in result.of(Reproduction.NOT_COMPARABLE):
        groups.setdefault(item.obstacles[0], []).append(item)
    return [
        f"{len(items)} figure{'s' * (len(items) > 1)} of {_papers(items)}: {why}"
        for why, items in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]


def _papers(items: Sequence[Comparison]) -> str:
    """`VVS, LANTERN and 2 more papers`."""
    papers = [*dict.fromkeys(item.row.paper for item in items)]
    more = len(papers) - NAMED
    return ", ".join(papers[:NAMED]) + (f" and {more} more paper{'s' * (more > 1)}" * (more > 0))


def markdown(result: Result) -> str:
    """compare.md."""
    parts = [
        f"# {table.escaped(result.run.study)} beside published numbers",
        f"{table.escaped(counts(result))}. {table.escaped(_conditions(result))}",
    ]
    if not result.shown():
        parts.append(NO_MODEL)
    compared = [c for c in result.comparisons if c.verdict is not Reproduction.NOT_COMPARABLE]
    if compared:
        why = Column("", "why", lambda one: grounds(one), words=True)
        parts.append(table.markdown(table.table_of((*COLUMNS, why), compared)))
    if apart := reasons(result):
        parts += ["## Not comparable (figure by figure in compare.csv)", table.bullets(apart)]
    parts += ["## How to read it", "\n".join(f"* {line}" for line in legend(result))]
    return "\n\n".join(parts) + "\n"


def legend(result: Result) -> list[str]:
    """What the columns mean."""
    ratio, of = result.tolerance, ABSOLUTE
    return [
        "Reproduced: the published figure lies in our 95 % interval, or within the tolerance: "
        f"{ratio:.0%} for speed-up, MAL and seconds, {ratio / 2:.1%} for FID, ±{of['clip']:g} for "
        f"CLIP (100 cos), ±{of['hps']:g} for HPS, ±{of['recall']:g} for precision and recall.",
        "An asterisk: the source leaves something unstated, and the verdict assumes it as listed.",
        "Speed-ups are paired ratios on the same prompts. Papers measure them against an eager AR "
        "without warm-up or synchronisation (METHODS 4, point 7), here AR is the same code on the "
        "same cache: a smaller speed-up over AR is expected. Across GPUs only ratios compare.",
        "MAL in the released code counts codes past the image's end, ours does not.",
        "Every published number carries its source: most are from third-party notes, not from the "
        "papers' own tables; arXiv ids are in compare.csv.",
    ]


def _conditions(result: Result) -> str:
    first = result.decoders[0]
    models = sorted({one.entry.text("model") for one in result.decoders})
    text = f"Measured: {', '.join(models)} on {first.device}"
    text += f", prompts {first.prompts or 'not recorded'}."
    if failed := [e.name for e in result.run.entries if e.role is not Role.RESEED and e.failed]:
        text += f" Failed and left out: {', '.join(failed)}."
    return text


def csv(result: Result) -> str:
    """compare.csv: one line a figure, every published row among them."""
    return table.csv_text([_csv_row(one) for one in result.comparisons])


def _csv_row(one: Comparison) -> dict[str, object]:
    row = one.row
    return {
        **{name: getattr(row, name) for name in ("paper", "arxiv", "evidence", "model", "gpu")},
        "method": row.label,
        "temperature": row.temperature,
        "figure": one.label,
        "published": one.published,
        "decoder": one.decoder,
        "measured": one.figure,
        "verdict": str(one.verdict),
        "why": grounds(one),
    }
