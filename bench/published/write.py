"""The comparison as Markdown, CSV and lines of the terminal, all from one set of cells."""

from __future__ import annotations

from collections.abc import Sequence

from bench.published.judge import Comparison, Verdict
from bench.published.measured import Figure
from bench.published.result import Result
from bench.report import table
from bench.report.table import Column

DIGITS = {"clip": 2, "precision": 3, "recall": 3, "image_reward": 4}
NO_MODEL = (
    "No published row is about this model. Figures stand side by side only to show which findings "
    "point the same way; none is reproduced or refuted by this run."
)


def number(value: float, metric: str) -> str:
    return f"{value:.{DIGITS.get(metric, 2)}f}"


def measured_text(figure: Figure, metric: str) -> str:
    """`1.45 [1.40, 1.51]`, a dash where nothing was measured."""
    if not figure.known:
        return table.ABSENT
    text = number(figure.value, metric)
    if figure.has_interval and figure.lo != figure.hi:
        text += f" [{number(figure.lo, metric)}, {number(figure.hi, metric)}]"
    return text


def verdict_text(found: Comparison) -> str:
    """The verdict; an asterisk marks one that rests on what the source does not state."""
    return f"{found.verdict}*" if found.assumed else str(found.verdict)


def published_text(found: Comparison) -> str:
    """`LANTERN, abstract v3: LANTERN, tau 1` and the decoder beside it."""
    row, tau = found.row, found.row.temperature
    text = f"{row.paper}, {row.evidence}: {row.label}"
    text += "" if tau is None else f", τ {tau:g}"
    return text if found.measured is None else f"{text} ↔ {found.measured.decoder}"


def gap_text(found: Comparison) -> str:
    """The difference with its sign."""
    if not found.figure.known:
        return table.ABSENT
    return f"{found.difference:+.{DIGITS.get(found.metric, 2)}f}"


COLUMNS = (
    Column("", "published row", published_text, words=True),
    Column("label", "figure", words=True),
    Column("", "published", lambda found: number(found.published, found.metric)),
    Column("", "measured", lambda found: measured_text(found.figure, found.metric)),
    Column("", "difference", gap_text),
    Column("", "verdict", verdict_text, words=True),
)
DIRECTION = Column("direction", "direction")


def grounds(result: Result, found: Comparison) -> str:
    """Why, and everything that qualifies it."""
    parts = [found.why]
    if found.assumed:
        parts.append(f"assumes {', '.join(found.assumed)}")
    extra = [*found.caveats, found.direction, result.disagreement(found)]
    return ". ".join(part for part in [*parts, *extra] if part)


def terminal(result: Result) -> str:
    """The comparable rows as a table (where no row is about this model: which findings point the
    same way), and what keeps the rest apart."""
    lines = [f"{result.run.study}: {result.run.source}", counts(result)]
    shown = [c for c in result.comparisons if c.verdict is not Verdict.APART]
    if shown:
        lines += ["", table.terminal(table.filled(COLUMNS, shown))]
    elif not result.covered:
        pointing = [c for c in result.beside() if c.direction]
        lines += ["", NO_MODEL]
        lines += ["", table.terminal(table.filled((*COLUMNS[:4], DIRECTION), pointing))]
    lines.append("")
    for why, count in reasons(result):
        lines.append(f"not comparable, {count} figure{'s' * (count > 1)}: {why}")
    return "\n".join(lines).rstrip()


def counts(result: Result) -> str:
    """`3 reproduced, 1 not reproduced, 20 not comparable`."""
    return ", ".join(f"{len(result.of(verdict))} {verdict}" for verdict in Verdict)


def reasons(result: Result) -> list[tuple[str, int]]:
    """The first obstacle of what is not comparable, most frequent first."""
    found: dict[str, int] = {}
    for item in result.of(Verdict.APART):
        found[item.obstacles[0]] = found.get(item.obstacles[0], 0) + 1
    return sorted(found.items(), key=lambda pair: -pair[1])


def markdown(result: Result) -> str:
    """compare.md."""
    parts = [
        f"# {table.escaped(result.run.study)} beside published numbers",
        f"{table.escaped(counts(result))}. {table.escaped(_conditions(result))}",
    ]
    if not result.covered:
        parts.append(f"{NO_MODEL} Other figures than speed-up and MAL are in compare.csv.")
    compared = [c for c in result.comparisons if c.verdict is not Verdict.APART]
    if compared:
        parts += ["## Compared", _table(result, compared)]
    apart = [c for c in result.beside() if c.verdict is Verdict.APART]
    if apart:
        parts += ["## Not comparable", _table(result, apart)]
    parts += ["## Not measured here", _absent(result)]
    if result.disagreements:
        lines = [f"{item.title}: {item.text}" for item in result.disagreements]
        parts += ["## Published numbers that disagree", table.bullets(lines)]
    parts += ["## How to read it", "\n".join(f"* {line}" for line in legend(result))]
    return "\n\n".join(parts) + "\n"


def legend(result: Result) -> list[str]:
    """What the columns mean."""
    t = result.tolerance
    return [
        "Reproduced: the published figure lies in our 95 % interval, or within the tolerance: "
        f"{t.ratio:.0%} for speed-up, MAL and seconds, {t.ratio / 2:.1%} for FID, ±{t.clip:g} for "
        f"CLIP (100 cos), ±{t.hps:g} for HPS, ±{t.share:g} for precision and recall.",
        "An asterisk: the source leaves something unstated, and the verdict assumes it as listed. "
        "Where it does not state the method's own settings, one of ours that gives the figure "
        "reproduces it, and the others are not comparable.",
        "Speed-ups are paired ratios on the same prompts. Papers measure them against an eager AR "
        "without warm-up or synchronisation (METHODS 4, point 7), here AR is the same code on the "
        "same cache: a smaller speed-up over AR is expected. Across GPUs only ratios compare.",
        "MAL in the released code counts codes past the image's end, ours does not.",
        "Every published number carries its source: most are from third-party notes, not from the "
        "papers' own tables; arXiv ids are in compare.csv.",
    ]


def _conditions(result: Result) -> str:
    row = result.run.rows[0]
    models = sorted({r.model for r in result.run.rows})
    text = f"Measured: {', '.join(models)} on {row.gpu or row.device}"
    text += f", prompts {row.prompts or 'not recorded'}."
    if result.run.failed:
        text += f" Failed and left out: {', '.join(result.run.failed)}."
    return text


def _table(result: Result, rows: Sequence[Comparison]) -> str:
    why = Column("", "why", lambda found: grounds(result, found), words=True)
    return table.markdown(table.filled((*COLUMNS, why), rows))


def _absent(result: Result) -> str:
    """Published rows without a measured one, and rows of other models."""
    found: dict[str, list[str]] = {}
    for item in result.of(Verdict.APART):
        if item.measured is None:
            found.setdefault(item.why, []).append(f"{item.row.paper} ({item.row.model or '—'})")
        elif result.covered and not item.same_model:
            who = f"{item.row.paper} ({item.row.model or 'no model named'})"
            found.setdefault("other models", []).append(who)
    lines = [f"{why}: {', '.join(dict.fromkeys(by))}" for why, by in found.items()]
    return table.bullets(lines) or "Every published row has a measured one."


def csv(result: Result) -> str:
    """compare.csv: one line a figure, every published row among them."""
    lines = [_csv_row(result, found) for found in result.comparisons]
    return table.csv_text(lines)


def _csv_row(result: Result, found: Comparison) -> dict[str, object]:
    row, figure = found.row, found.figure
    known = figure.known

    def shown(value: float, when: bool = True) -> object:
        return f"{value:.6g}" if when else ""

    return {
        "paper": row.paper,
        "arxiv": row.arxiv,
        "evidence": row.evidence,
        "published_line": row.line,
        "model": row.model,
        "method": row.method,
        "params": " ".join(f"{k}={v:g}" for k, v in row.params.items()),
        "temperature": "" if row.temperature is None else f"{row.temperature:g}",
        "gpu": row.gpu,
        "metric": found.metric,
        "baseline": row.baseline if found.metric == "speedup" else "",
        "published": shown(found.published),
        "decoder": found.measured.decoder if found.measured else "",
        "measured": shown(figure.value, known),
        "measured_lo": shown(figure.lo, figure.has_interval),
        "measured_hi": shown(figure.hi, figure.has_interval),
        "difference": shown(found.difference, known),
        "relative": shown(found.difference / found.published, known and found.published != 0),
        "verdict": str(found.verdict),
        "why": found.why,
        "assumed": "; ".join(found.assumed),
        "caveats": "; ".join(found.caveats),
        "direction": found.direction,
        "disagreement": result.disagreement(found),
    }
