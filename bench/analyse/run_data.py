"""What a run holds, as everything that reads runs sees it: sections of entries, in summary order.

A *section* holds what may be compared: one temperature and guidance, because a speed-up is a paired
ratio to AR under the same settings. Greedy and sampling decoders therefore never share a table or a
panel. An *entry* is one line of the summary with its image rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd

from bench.analyse.fairness import UNFAIR, UNMEASURED, Fairness
from bench.analyse.paired import CLIP_LESS, CLIP_TEST, image_rows
from bench.measure.roofline import MachineRates
from bench.store.findings import Verdict
from metrics.stats import (
    UNKNOWN,
    Interval,
    NonInferiority,
    differs_by_chance,
    non_inferiority,
    reseed_p,
    reseed_range,
)

UNFAIR_BASELINE = "unfair baseline"
MARKED = ("broken", "not checked", UNFAIR_BASELINE, UNMEASURED)  # in the order of their notes
RESEED_LABEL = "AR reseed"
LEVEL = 0.05  # of a mark: how often a decoder that draws as AR does lacks it
MARGIN = 1.0  # of CLIP scores, where a study states none
FEWEST_SEEDS = 4  # of AR; fewer say too little of how FID differs by chance


class Role(Enum):
    """What a row of the summary stands for."""

    BASELINE = "baseline"  # the AR entry that the section's speed-ups refer to
    DECODER = "decoder"
    RESEED = "reseed"  # AR again with a second seed: how far apart two equal decoders come out


@dataclass(frozen=True)
class Entry:
    """One decoder of one section: its summary row and its image rows without reseeds."""

    name: str
    role: Role
    row: dict[str, Any]
    records: pd.DataFrame
    error: str  # first error met, "" when every image came out
    failures: int  # failed image rows

    @property
    def failed(self) -> bool:
        """Whether the entry has no figures to show."""
        return str(self.row["status"]).startswith("fail")

    @property
    def exact(self) -> bool:
        """Whether the gate found its output to have the target's own distribution."""
        return self.text("exactness").startswith("exact")

    @property
    def word(self) -> str:
        """The verdict without its details in brackets; "exact as far as sampled" keeps them."""
        text = self.text("exactness")
        return text if text.startswith("exact as far") else text.partition(" (")[0]

    @property
    def ok(self) -> pd.DataFrame:
        """Image rows that came out."""
        return self.records[self.records["status"] == "ok"]

    def number(self, column: str) -> float:
        """Reads a figure of the summary; NaN where it was not measured."""
        return float(self.row[column])

    def interval(self, column: str) -> Interval:
        """Reads a figure with its ends, in columns `_lo` and `_hi`."""
        return Interval(*(self.number(column + end) for end in ("", "_lo", "_hi")))

    def text(self, column: str) -> str:
        """Reads words of the summary; "" where there are none."""
        return as_text(self.row[column])

    @property
    def label(self) -> str:
        """The decoder's name as tables show it."""
        if self.role is not Role.RESEED:
            return self.name
        seed = "" if self.records.empty else f", seed {self.records['seed'].iloc[0]}"
        return RESEED_LABEL + seed

    @property
    def images(self) -> pd.DataFrame:
        """One row for each image that came out in a protocol, however often it was timed."""
        return image_rows(self.records)


@dataclass(frozen=True)
class Section:
    """Entries that were measured at the same temperature and guidance."""

    title: str
    entries: list[Entry]
    fid_name: str
    clip_name: str
    margin: float = MARGIN  # points of CLIP score that a decoder may lose and be not worse

    @property
    def baseline(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.role is Role.BASELINE), None)

    @property
    def reseeds(self) -> list[Entry]:
        """The baseline under other seeds."""
        return [entry for entry in self.entries if entry.role is Role.RESEED]

    def _seeds(self, column: str) -> list[float]:
        """Lists the baseline's figure, then those under other seeds; [] without a baseline."""
        runs = [] if self.baseline is None else [self.baseline, *self.reseeds]
        return [run.number(column) for run in runs]

    @property
    def decoders(self) -> list[Entry]:
        """Every entry but reseeds, failed ones included."""
        return [entry for entry in self.entries if entry.role is not Role.RESEED]

    def reseeded(self, column: str) -> Interval:
        """Returns where AR's figure lies under another seed (`metrics.stats.reseed_range`); NaN
        where no other seed was run or measured."""
        figures = self._seeds(column)
        if len(figures) < 2 or any(map(math.isnan, figures)):
            return UNKNOWN
        return reseed_range(figures)

    def speed_is_noise(self, entry: Entry) -> bool:
        """Whether the interval of the speed-up includes 1: faster and slower are both possible."""
        return entry.role is Role.DECODER and entry.interval("speedup").contains(1)

    def differs_by_chance(self, column: str, level: float) -> float:
        """Returns how far two runs' figures lie apart by their seeds alone (`metrics.stats`)."""
        return differs_by_chance(self._seeds(column), level)

    def is_noise(self, entry: Entry, column: str) -> bool:
        """Whether chance can explain the difference of a figure from AR's: of CLIP scores prompt by
        prompt, of FID by AR's seeds, of which there must be `FEWEST_SEEDS`."""
        if entry.role is not Role.DECODER:
            return False
        if column == "clip":
            return entry.interval(CLIP_LESS).contains(0)
        seeds = self._seeds("fid") if column == "fid" else []
        return len(seeds) >= FEWEST_SEEDS and reseed_p(seeds, entry.number(column)) >= LEVEL

    def quality(self, entry: Entry) -> NonInferiority | None:
        """Whether the decoder's CLIP score is not worse than AR's by more than the study's margin,
        prompt by prompt; None where the two were not compared."""
        mean, sd, images = (entry.number(column) for column in CLIP_TEST)
        if math.isnan(sd):
            return None
        return non_inferiority(mean, sd, int(images), self.margin)


@dataclass(frozen=True)
class RunData:
    """A run as `bench.analyse.analyse` reads it. identity: study.json; roofline, scores
    (`bench.analyse.scorers.Scores`), fairness, gate: by decoder;
    machine: None where its rates were not measured; clip_pairs: differences of CLIP scores, see
    `paired.clip_differences`."""

    folder: Path
    study: str
    sections: list[Section]
    records: pd.DataFrame
    identity: dict[str, Any] = field(default_factory=dict)
    roofline: dict[str, dict[str, Any]] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    fairness: dict[str, Fairness] = field(default_factory=dict)
    gate: dict[str, Verdict] = field(default_factory=dict)
    machine: MachineRates | None = None
    clip_pairs: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def marks(self) -> list[tuple[str, str]]:
        """Lists (mark, reason) of what is `MARKED`, each once: footnote n is the n-th."""
        every = (mark(e) for e in self.entries for mark in (self._verdict_mark, self._speed_mark))
        return list(dict.fromkeys(sorted(filter(None, every), key=lambda m: MARKED.index(m[0]))))

    def speed_mark(self, entry: Entry) -> str:
        """Writes `unfair baseline (1)`: the mark of a speed-up with its footnote; "" without."""
        return self._numbered(self._speed_mark(entry))

    def verdict(self, entry: Entry) -> str:
        """Writes `broken (1)`: the verdict, with its footnote where it has one."""
        return self._numbered(self._verdict_mark(entry)) or entry.word

    def _numbered(self, mark: tuple[str, str] | None) -> str:
        return f"{mark[0]} ({self.marks.index(mark) + 1})" if mark else ""

    def _verdict_mark(self, entry: Entry) -> tuple[str, str] | None:
        verdict = None if entry.failed else self.gate.get(entry.name)
        reason = "" if verdict is None else verdict.detail
        return (entry.word, reason) if reason and entry.word in MARKED else None

    def _speed_mark(self, entry: Entry) -> tuple[str, str] | None:
        fair = self.fairness.get(entry.name)
        if fair is None or (fair.verdict == UNFAIR and math.isnan(entry.number("speedup"))):
            return None
        mark = {UNFAIR: UNFAIR_BASELINE, UNMEASURED: UNMEASURED}.get(fair.verdict)
        return (mark, fair.reason) if mark else None

    def unmeasured(self, entry: Entry) -> bool:
        """Whether an entry's speed-up does not count."""
        return entry.name in self.fairness and self.fairness[entry.name].verdict == UNMEASURED

    def eager(self, entry: Entry) -> str:
        """Marks an entry of which a piece was not compiled where others' are; "" for others."""
        fair = self.fairness.get(entry.name)
        return "eager" if fair is not None and fair.mixed else ""

    def decoders_by_reason(self, verdict: str) -> dict[str, list[str]]:
        """Groups timed decoders by the reason for this verdict on their baseline, in the order of
        the tables."""
        timed = [e.name for e in self.entries if not math.isnan(e.number("speedup"))]
        reasons: dict[str, list[str]] = {}
        for one in (self.fairness[name] for name in timed if name in self.fairness):
            if one.verdict == verdict:
                reasons.setdefault(one.reason, []).append(one.decoder)
        return reasons

    @property
    def entries(self) -> list[Entry]:
        return [entry for section in self.sections for entry in section.entries]

    @property
    def all_failed(self) -> bool:
        return all(entry.failed for entry in self.entries if entry.role is not Role.RESEED)


def forward_part(line: dict[str, Any]) -> str:
    """Names the target forward of a line: "ar" for an AR step, "forward" for one over a draft."""
    return "forward" if line["codes"] > 1 or line["forward_ms"] > 0 else "ar"


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN or an empty string."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def as_text(value: Any) -> str:
    return "" if is_missing(value) else str(value)
