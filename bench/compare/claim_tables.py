"""What is said of claims and their verdicts: tables, a block of a run's report, claims.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd

from bench.analyse.run import Run
from bench.compare.claims import COLUMNS as CSV_COLUMNS
from bench.compare.claims import Spec, load_claims
from bench.compare.judging import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    NOT_TOLD,
    REFUTED,
    SMALLER,
    VERDICTS,
    Finding,
    Judged,
    judge,
)
from bench.config.methods import Method, class_name, detailed, differ, load_methods, settings_of
from bench.errors import plural
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
    "counts, of speeds that with the most timings on each machine. A speed without an interval, or "
    "over an unfair baseline, is named and does not count. A setting that both decoders of a pair "
    "have is named with the first. Claims of a law are judged by "
    "the gate, of a bound at every recorded code (here: the least distance below it), of quality "
    "by the study's margin.",
)
REFUTATION = (
    "Refuted without a run: the authors' code, a formula or a paper's table contradicts it; the "
    "column 'here' says how."
)

CELLS = [name for name in CSV_COLUMNS if name not in ("better", "than")]
OTHERS = ("tree._target_", "tree.depth", "drafter._target_")  # settings, said where they differ
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
    return f"of {len(findings)} claims of {plural(papers, 'paper')} {', '.join(parts)}"


def _here(one: Finding) -> str:
    judged = one.decisive
    if judged is None:
        return one.claim.once if one.verdict == REFUTED else f"study={one.claim.needs}"
    text = "" if math.isnan(judged.effect.value) else interval(judged.effect, _digits(one))
    return ", ".join(filter(None, [text, judged.note]))


def _digits(one: Finding) -> int:
    return 3 if one.claim.figure in ("output_tv", "bound", "output_bound", "acceptance") else 2


def _pairs(methods: Mapping[str, Method], one: Finding) -> str:
    """The decoders of the worst pair and of the best one with their settings, and of those whose
    effect tells nothing."""
    judged, count = one.decisive, sum(pair.counts for pair in one.pairs)
    if judged is None:
        return ABSENT
    text = f"worst of {count}: " * (count > 1) + _pair(methods, one, judged)
    best = one.best if count > 1 else None
    more = [("best", best, best.verdict * (best.verdict != one.verdict))] if best else []
    more += [(NOT_TOLD, p, p.note) for p in one.pairs if p.unjudged and p is not judged]
    for word, pair, why in more:
        size = number(pair.effect.value, _digits(one)) * math.isfinite(pair.effect.value)
        where = f"in {pair.run}" * (pair.run != judged.run)
        words = [_pair(methods, one, pair), size, where, f"({why})" * bool(why)]
        text += f"; {word}: {' '.join(filter(None, words))}"
    return text


def _pair(methods: Mapping[str, Method], one: Finding, pair: Judged) -> str:
    """`lantern (k = 64, delta = 0.4) / eagle2`: decoders with the settings that papers state, and
    those that the claim names, or of `OTHERS`, in which its decoders differ. What the second has in
    common with the first is said once."""
    texts, said = list[str](), set[str]()
    named = {key for side in (one.claim.better, one.claim.than) if side for key in side.named}
    for at, spec in enumerate(pair.specs):
        every = [other.specs[at] for other in one.pairs]
        words = dict.fromkeys(OTHERS, "") | settings_of(spec, methods)
        for key in {**words, **dict.fromkeys(sorted(named))}:
            if not words.get(key) and key in spec and differ(every, key):
                words[key] = _setting(spec, key)
        new = [word for word in words.values() if word and word not in said]
        texts.append(detailed((pair.better, pair.than)[at], *new))
        said |= {*new}
    return " / ".join(texts)


def _setting(spec: Spec, key: str) -> str:
    """`tree = Chain`, `depth = 4`."""
    part, _, name = key.partition(".")
    return f"{part} = {class_name(spec, key)}" if name == "_target_" else f"{name} = {spec[key]}"


COLUMNS = (
    Column("claim", lambda one: one.claim.says, text=True),
    Column("paper", lambda one: one.claim.paper, text=True),
    Column("verdict", lambda one: one.verdict, text=True),
    Column("published", lambda one: number(one.claim.published, 2)),
    Column("here", _here, text=True),
)
RUN = Column("run", lambda one: one.decisive.run if one.decisive else ABSENT, text=True)


def claim_table(findings: Sequence[Finding], runs: int = 1) -> Table:
    """A row per claim: those that hold first. runs: how many they are judged by."""
    order = sorted(findings, key=lambda one: VERDICTS.index(one.verdict))
    decoders = Column("decoders", partial(_pairs, load_methods()), text=True, names=True)
    return table_of([*COLUMNS, *[RUN] * (runs > 1), decoders], order)


def claim_rows(findings: Sequence[Finding]) -> pd.DataFrame:
    """A row per claim and pair, with the grounds of its verdict."""
    lines = list[dict[str, object]]()
    for one in findings:
        cells = {name: getattr(one.claim, name) for name in CELLS} | {"verdict": one.verdict}
        lines += [cells] * (not one.pairs)
        for pair in one.pairs:
            more = {name: getattr(pair, name) for name in ("run", "better", "than")}
            more |= {"pair": pair.verdict, **vars(pair.effect)}
            lines.append(cells | more | {"note": pair.note, "counts": pair.counts})
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
