"""A whole comparison: every published row against one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.published.disagree import Disagreement, disagreements
from bench.published.judge import Comparison, Tolerance, Verdict, compare
from bench.published.match import pairs
from bench.published.measured import MeasuredRun
from bench.published.names import Names
from bench.published.table import Published


@dataclass(frozen=True)
class Result:
    """comparisons: in the order of the published rows; tolerance: of ratios."""

    run: MeasuredRun
    comparisons: list[Comparison]
    disagreements: list[Disagreement]
    tolerance: Tolerance

    def of(self, verdict: Verdict) -> list[Comparison]:
        return [c for c in self.comparisons if c.verdict is verdict]

    def disagreement(self, found: Comparison) -> str:
        """What other sources say of the same published figure, "" where nothing else."""
        for item in self.disagreements:
            if item.metric == found.metric and any(r.line == found.row.line for r in item.rows):
                return item.text
        return ""

    @property
    def covered(self) -> bool:
        """Whether any published row is of a model of this run."""
        return any(c.same_model for c in self.comparisons)

    def beside(self) -> list[Comparison]:
        """What is worth a line in a table or a plot: the model's own rows; where there is none, the
        speed-ups and accepted lengths of other models."""
        if self.covered:
            return [c for c in self.comparisons if c.same_model]
        shown = ("speedup", "mal")
        return [c for c in self.comparisons if c.measured is not None and c.metric in shown]


def build(
    rows: Sequence[Published], run: MeasuredRun, names: Names, tolerance: Tolerance
) -> Result:
    """Compares every published row with the measured rows nearest to it."""
    found = [
        comparison
        for row in rows
        for pair in pairs(row, run.rows, names)
        for comparison in compare(pair, run.rows, names, tolerance)
    ]
    return Result(run, _settled(found), disagreements(rows, names), tolerance)


def _settled(found: list[Comparison]) -> list[Comparison]:
    """Where a source does not state the method's settings and several of ours stand beside one
    figure: it is reproduced if any of them gives it, and the others neither confirm nor refute it;
    the number of settings tried is told, as one of many agrees more easily."""
    groups: dict[tuple[int, str], list[Comparison]] = {}
    for item in found:
        if item.unstated and item.verdict is not Verdict.APART:
            groups.setdefault((item.row.line, item.metric), []).append(item)
    out = []
    for item in found:
        group = groups.get((item.row.line, item.metric), [])
        out.append(_among(item, group) if len(group) > 1 and item in group else item)
    return out


def _among(item: Comparison, group: list[Comparison]) -> Comparison:
    """The verdict of one of several settings that may be the published one."""
    hits = [c.measured.decoder for c in group if c.verdict is Verdict.REPRODUCED and c.measured]
    if not hits:
        return replace(item, why=f"{item.why}; at none of {len(group)} settings")
    if item.verdict is Verdict.REPRODUCED:
        return replace(item, why=f"{item.why}; at {len(hits)} of {len(group)} settings")
    text = f"the source does not state its settings; reproduced by {', '.join(hits)}"
    return replace(item, verdict=Verdict.APART, why=text, obstacles=(text,), assumed=())
