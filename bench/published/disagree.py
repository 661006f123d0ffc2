"""Published rows that speak of one thing and give several numbers.

Two rows speak of one thing where method, baseline, model, temperature, guidance, top-k and the
method's settings agree as far as both sources state them. Seconds need the same stated GPU too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.published.judge import LABELS
from bench.published.names import Names
from bench.published.table import FIGURES, Published

SETTINGS = ("resolution", "temperature", "cfg", "top_k")


@dataclass(frozen=True)
class Disagreement:
    """rows: two or more, by line. sure False: only because a source leaves something unstated."""

    metric: str
    rows: tuple[Published, ...]
    sure: bool

    @property
    def text(self) -> str:
        """`published numbers disagree: 0.87..0.93 (VVS, LANTERN)`."""
        values = [row.figures[self.metric] for row in self.rows]
        papers = ", ".join(dict.fromkeys(row.paper for row in self.rows))
        may = "disagree" if self.sure else "disagree, or differ in what one of them does not state"
        return f"published numbers {may}: {min(values):g}..{max(values):g} ({papers})"

    @property
    def title(self) -> str:
        """What the rows speak of."""
        first = max(self.rows, key=lambda row: len(row.params) + (row.temperature is not None))
        over = f" over {first.baseline}" if self.metric == "speedup" else ""
        at = "" if first.temperature is None else f", temperature {first.temperature:g}"
        return f"{LABELS[self.metric]}{over} of {first.label} on {first.model}{at}"


def disagreements(rows: Sequence[Published], names: Names) -> list[Disagreement]:
    """All of them, the largest groups only."""
    found: list[Disagreement] = []
    for metric in FIGURES:
        seen: list[Disagreement] = []
        for row in rows:
            group = peers(row, metric, rows, names)
            if len({other.figures[metric] for other in group}) > 1:
                sure = any(
                    _state_alike(a, b) and a.figures[metric] != b.figures[metric]
                    for a in group
                    for b in group
                )
                seen.append(Disagreement(metric, tuple(group), sure))
        found += _largest(seen)
    return found


def peers(row: Published, metric: str, rows: Sequence[Published], names: Names) -> list[Published]:
    """The rows with this figure that may speak of the same thing as `row`, itself among them."""
    if metric not in row.figures:
        return []
    return [
        other for other in rows if metric in other.figures and _may_match(row, other, metric, names)
    ]


def _may_match(one: Published, other: Published, metric: str, names: Names) -> bool:
    if one.method != other.method or not _same_model(one, other, names):
        return False
    if metric == "speedup" and one.baseline != other.baseline:
        return False
    if metric == "latency_s" and not (one.gpu and one.gpu == other.gpu):
        return False
    for name in SETTINGS:
        a, b = getattr(one, name), getattr(other, name)
        if a is not None and b is not None and a != b:
            return False
    return all(other.params[k] == v for k, v in one.params.items() if k in other.params)


def _same_model(one: Published, other: Published, names: Names) -> bool:
    """Equal, or one of a family and a member of it. A row without a model matches none."""
    if not one.model or not other.model:
        return one is other
    members = names.families.get(one.model, ()), names.families.get(other.model, ())
    return one.model == other.model or other.model in members[0] or one.model in members[1]


def _state_alike(one: Published, other: Published) -> bool:
    """Whether both state the same model, settings of sampling and settings of the method."""
    if one.model != other.model or dict(one.params) != dict(other.params):
        return False
    return one.temperature == other.temperature and one.temperature is not None


def _largest(found: Sequence[Disagreement]) -> list[Disagreement]:
    """Without repetitions and without groups that lie inside another."""
    kept: dict[frozenset[int], Disagreement] = {}
    for item in found:
        kept.setdefault(frozenset(row.line for row in item.rows), item)
    return [item for lines, item in kept.items() if not any(lines < other for other in kept)]
