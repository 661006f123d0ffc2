"""What bounds an AR step of a run, said under its table: memory or arithmetic.

Why: drafts pay where an AR step waits for memory. A reader who does not know the regime takes a
table of speed-ups for a verdict on the methods, where it is one on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.measure.regime import MEMORY, Growth, Known, Point, place_of, regime
from bench.report.model import Run, Section
from bench.report.roofline import figure


@dataclass(frozen=True)
class Bounds:
    """Of the forwards of a section. place: what is read at the rate (memory, a cache)."""

    growth: Growth
    rates: Known
    place: str = MEMORY

    @property
    def crossing(self) -> float | None:
        """Where reading and arithmetic take equally long."""
        return self.growth.crossing(self.rates)

    @property
    def takes_over(self) -> int | None:
        """Codes per forward from which arithmetic takes longest; None: never."""
        return self.growth.takes_over(self.rates)


def bounds(run: Run, section: Section) -> Bounds | None:
    """From the section's lines of roofline.csv; None where no floor is known."""
    lines = [run.roofline[e.name] for e in section.decoders if e.name in run.roofline]
    known = [one for one in lines if figure(one, "ar_bytes") > 0 and figure(one, "bytes_per_s") > 0]
    if not known:
        return None
    first = known[0]
    trees = [one for one in known if figure(one, "codes") > 1 and figure(one, "forward_bytes") > 0]
    widest = max(trees, key=lambda one: figure(one, "codes"), default=None)
    other = None if widest is None else _point(widest, "forward", figure(widest, "codes"))
    rate = figure(first, "bytes_per_s")
    return Bounds(
        Growth.through(_point(first, "ar", 1), other),
        Known(rate, figure(first, "operations_per_s")),
        place_of(rate, figure(first, "large_bytes_per_s")),
    )


def _point(line: dict[str, Any], part: str, codes: float) -> Point:
    return Point(codes, figure(line, f"{part}_bytes"), figure(line, f"{part}_operations"))


def regime_lines(run: Run) -> list[str]:
    """One line for what all sections share, else one a section; [] where no floor is known."""
    said: dict[str, str] = {}
    for section in run.sections:
        found = bounds(run, section)
        if found is not None:
            text = regime(found.growth, found.rates, found.place)
            said.setdefault(text, section.title)
    if len(said) == 1:
        return [*said]
    return [f"{title}: {text}" for text, title in said.items()]
