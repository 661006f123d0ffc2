"""What is said of claims and their verdicts: tables, a block of a run's report, claims.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from bench.analyse.run import Run
from bench.compare.claims import load_claims
from bench.compare.judging import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    NOT_TOLD,
    REFUTED,
    SMALLER,
    VERDICTS,
    Finding,
    judge,
)
from bench.report.table import ABSENT, Column, Table, interval, number, table_of
from bench.report.texts import Block, bullets, escape_markdown, markdown_table

LEGEND = (
    "Holds: the whole 95 % interval is beyond half of the paper's size (of a ratio in the "
    "logarithm), and that size is not above it. Where the paper gives none: it is beyond none.",
    "Holds, smaller: the better one is better beyond chance, by less than the paper says. Does not "
    "hold: it is not, and half of the paper's size is ruled out; any gain, where the paper gives "
    "no size. Not told: none of these. Over an unfair baseline a claim of speed cannot hold.",
    "Of several pairs of decoders that differ in nothing but what the claim names the worst "
    "counts, and the best is named. Of runs that repeat one setting that with the most images "
    "counts, of speeds that with the most timings on each machine. Claims of a law are judged by "
    "the gate, of a bound at every recorded code (here: the least distance below it), of quality "
    "by the study's margin.",
)
REFUTATION = (
    "Refuted without a run: the authors' code, a formula or a paper's table contradicts it; the "
    "column 'here' says how."
)


CELLS = ("id", "paper", "arxiv", "says", "figure", "published", "within", "source", "needs", "once")
SAID = {  # of one claim, and of several
    HOLDS: ("holds", "hold"),
    SMALLER: ("holds at a smaller size", "hold at a smaller size"),
    NOT_TOLD: ("is not told", "are not told"),
    FAILS: ("does not hold", "do not hold"),
    REFUTED: ("is refuted without a run", "are refuted without a run"),
    NOT_MEASURED: ("is not measured", "are not measured"),
}


def count(findings: Sequence[Finding]) -> str:
    """`of 72 claims of 25 papers 28 hold, ...`: a sentence without its end."""
    counts = Counter(one.verdict for one in findings)
    papers = len({one.claim.arxiv for one in findings})
    parts = [f"{counts[name]} {SAID[name][counts[name] > 1]}" for name in VERDICTS if counts[name]]
    return f"of {len(findings)} claims of {papers} paper{'s' * (papers != 1)} {', '.join(parts)}"


def _here(one: Finding) -> str:
    judged = one.decisive
    if judged is None:
        return one.claim.once if one.verdict == REFUTED else f"study={one.claim.needs}"
    text = "" if math.isnan(judged.effect.value) else interval(judged.effect, _digits(one))
    return ", ".join(filter(None, [text, judged.note]))


def _digits(one: Finding) -> int:
    return 3 if one.claim.figure in ("output_tv", "bound", "output_bound", "acceptance") else 2


def _pairs(one: Finding) -> str:
    judged, count = one.decisive, sum(pair.counts for pair in one.pairs)
    if judged is None:
        return ABSENT
    if count < 2:
        return judged.pair
    text = f"worst of {count}: {judged.pair}"
    if best := one.best:
        size = number(best.effect.value, _digits(one)) * math.isfinite(best.effect.value)
        where = f"in {best.run}" if best.run != judged.run else ""
        text += "; best: " + " ".join(filter(None, [best.pair, size, where]))
        text += f", {best.verdict}" * (best.verdict != one.verdict)
    return text


COLUMNS = (
    Column("claim", lambda one: one.claim.says, text=True),
    Column("paper", lambda one: one.claim.paper, text=True),
    Column("verdict", lambda one: one.verdict, text=True),
    Column("published", lambda one: number(one.claim.published, 2)),
    Column("here", _here, text=True),
    Column("decoders", _pairs, text=True, names=True),
)
RUN = Column("run", lambda one: one.decisive.run if one.decisive else ABSENT, text=True)


def claim_table(findings: Sequence[Finding], runs: int = 1) -> Table:
    """A row per claim: those that hold first. runs: how many they are judged by."""
    order = sorted(findings, key=lambda one: VERDICTS.index(one.verdict))
    return table_of([*COLUMNS, *[RUN] * (runs > 1)], order)


def claim_rows(findings: Sequence[Finding]) -> pd.DataFrame:
    """A row per claim and pair, with the grounds of its verdict."""
    lines = []
    for one in findings:
        claim = one.claim
        cells = {name: getattr(claim, name) for name in CELLS} | {"verdict": one.verdict}
        for pair in one.pairs or (None,):
            more = (
                {}
                if pair is None
                else {
                    "run": pair.run,
                    "better": pair.better,
                    "than": pair.than,
                    "pair": pair.verdict,
                    **vars(pair.effect),
                    "note": pair.note,
                    "counts": pair.counts,
                }
            )
            lines.append(cells | more)
    return pd.DataFrame(lines)


def claims_of(run: Run) -> Block | None:
    """The claims that a run can judge, for its report; None where there is none."""
    findings = [one for one in judge(load_claims(), [run]) if one.pairs]
    if not findings:
        return None
    text = f"{count(findings).capitalize()}. {len(load_claims())} claims are known."
    return Block("claims", "Claims of papers", [claim_table(findings)], [text, *LEGEND])


def claim_page(findings: Sequence[Finding], runs: Sequence[Run], command: str) -> str:
    """claims.md: all claims over these runs."""
    models = ", ".join(sorted({str(name) for run in runs for name in run.rows.model}))
    parts = [
        "# Claims of papers, judged here",
        f"{count(findings).capitalize()}, on the model {escape_markdown(models)}. "
        f"Written by `{command}`. `claims.csv` beside this file has every pair of decoders, "
        "results/published/claims.csv the claims and their sources.",
        bullets((*LEGEND, REFUTATION)),
    ]
    for verdict in VERDICTS:
        mine = [one for one in findings if one.verdict == verdict]
        if mine:
            parts += [
                f"## {verdict.capitalize()} ({len(mine)})",
                markdown_table(claim_table(mine, len(runs))),
            ]
    return "\n\n".join(parts) + "\n"
