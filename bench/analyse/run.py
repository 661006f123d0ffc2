"""What a run holds, as everything that reads runs sees it: sections of entries, and tables.

A *section* holds what may be compared: one temperature and guidance, because a speed-up is a paired
ratio to AR under the same settings. Greedy and sampling decoders therefore never share a table or a
panel. An *entry* is a decoder of a section, or AR under another seed, with its figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd

from bench.analyse.fairness import UNFAIR, UNMEASURED, Fairness
from bench.analyse.figures import FIGURES, Figure, Value
from bench.analyse.line import Line
from bench.analyse.paired import CLIP_LESS, drawn, images_once, pictures
from bench.errors import plural
from bench.measure.roofline import MachineRates
from bench.store.facts import Verdict, flat
from metrics.stats import (
    NO_INTERVAL,
    NOT_WORSE,
    Interval,
    NonInferiority,
    non_inferiority,
    reseed_p,
    reseed_range,
)

UNFAIR_BASELINE = "unfair baseline"
MARKED = ("broken", "not checked", UNFAIR_BASELINE, UNMEASURED)  # in the order of their notes
RESEED_LABEL = "AR reseed"
NOISE_LEVEL = 0.05  # how often a decoder that draws as AR does lacks the mark of noise
MARGIN = 1.0  # of CLIP scores, where a study states none
DIVISIONS = ("exact decoders", "relaxed decoders", "not judged")
FEWEST_SEEDS = 4  # of AR; fewer say too little of how FID differs by chance
IMAGE_KEY = ["prompt_index", "seed", "prompt"]


class Role(Enum):
    """What a line of the summary stands for."""

    BASELINE = "baseline"  # the AR entry that the section's speed-ups refer to
    DECODER = "decoder"
    RESEED = "reseed"  # AR again with a second seed: how far apart two equal decoders come out


@dataclass(frozen=True)
class Entry:
    """One decoder of one section. line: what its figures are computed from; figures: by name."""

    name: str
    role: Role
    line: Line
    figures: Mapping[str, Value]

    @property
    def rows(self) -> pd.DataFrame:
        """Its image rows, without reseeds."""
        return self.line.rows

    @property
    def label(self) -> str:
        """The decoder's name as tables show it."""
        if self.role is not Role.RESEED:
            return self.name
        seeds = [*map(str, self.rows["seed"].unique())]
        words = f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" * bool(seeds)
        return RESEED_LABEL + words

    @property
    def errors(self) -> list[str]:
        """One for each image that failed."""
        return list(self.rows[self.rows["status"] == "failed"]["error"])

    @property
    def failed(self) -> bool:
        """Whether the entry has no figures to show."""
        return self.text("status").startswith("fail")

    @property
    def exact(self) -> bool:
        """Whether the gate found its output to have the target's own distribution."""
        return self.text("exactness").startswith("exact")

    @property
    def word(self) -> str:
        """The verdict, without its TV where it is "broken", which a note says."""
        text = self.text("exactness")
        return "broken" if text.startswith("broken") else text

    @property
    def division(self) -> str:
        """The one of `DIVISIONS` that a decoder is ranked in."""
        if self.exact:
            return DIVISIONS[0]
        return DIVISIONS[1 if self.word.startswith(("relaxed", "broken")) else 2]

    @property
    def over_declared(self) -> bool:
        """Whether the output TV of tested codes exceeds what the rule declares for them (on
        TV(p, p_A), not on the output)."""
        return self.number("tv_tested") > self.number("tv_declared_bound") + 1e-6

    def number(self, name: str) -> float:
        """A figure; NaN where it was not measured."""
        return self.interval(name).value

    def interval(self, name: str) -> Interval:
        """A figure with its interval, whose ends are NaN where it has none."""
        value = self.figures[name]
        return value if isinstance(value, Interval) else Interval(float(value), math.nan, math.nan)

    def text(self, name: str) -> str:
        """A figure that is a text; "" where there is none."""
        return str(self.figures[name])

    def by_image(self, name: str) -> pd.DataFrame:
        """A figure of every image by prompt and seed, and what it weighs in the mean: `mal` its
        forwards, a score of every picture 1."""
        if name == "mal":
            rows = images_once(self.rows).set_index(IMAGE_KEY)
            return pd.DataFrame({"value": rows.mal, "weight": rows.nfe})[rows.nfe > 0]
        rows, each = pictures(drawn(self.rows)), self.line.scores[name].each
        index = rows.set_index(IMAGE_KEY).index
        return pd.DataFrame({"value": [*each] or math.nan, "weight": 1.0}, index)


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
    def decoders(self) -> list[Entry]:
        """Every entry but reseeds, failed ones included."""
        return [entry for entry in self.entries if entry.role is not Role.RESEED]

    def seeds(self, column: str) -> list[float]:
        """Lists the baseline's figure, then those under other seeds; [] without a baseline."""
        reseeds = [entry for entry in self.entries if entry.role is Role.RESEED]
        runs = [] if self.baseline is None else [self.baseline, *reseeds]
        return [run.number(column) for run in runs]

    def reseeded(self, column: str) -> Interval:
        """Returns where AR's figure lies under another seed (`metrics.stats.reseed_range`); NaN
        where no other seed was run or measured."""
        figures = self.seeds(column)
        known = len(figures) > 1 and not any(map(math.isnan, figures))
        return reseed_range(figures) if known else NO_INTERVAL

    def is_noise(self, entry: Entry, column: str) -> bool:
        """Whether chance can explain the difference of a figure from AR's: of speed-ups by their
        intervals, of CLIP scores prompt by prompt, of FID by AR's seeds, of which there must be
        `FEWEST_SEEDS`."""
        if entry.role is not Role.DECODER:
            return False
        if column == "speedup":
            return entry.interval("speedup").contains(1)
        if column == "clip":
            return entry.interval(CLIP_LESS).contains(0)
        seeds = self.seeds("fid") if column == "fid" else []
        return len(seeds) >= FEWEST_SEEDS and reseed_p(seeds, entry.number(column)) >= NOISE_LEVEL

    def quality(self, entry: Entry) -> NonInferiority | None:
        """Whether the decoder's CLIP score is not worse than AR's by more than the study's margin,
        prompt by prompt; None where the two were not compared."""
        less = entry.line.clip_less
        if not less:
            return None
        sd, images = less[f"{CLIP_LESS}_sd"], int(less["clip_images"])
        return non_inferiority(less[CLIP_LESS], sd, images, self.margin)

    def not_worse(self, entry: Entry) -> bool:
        """Whether its images are as good as AR's: by its law, or by their CLIP scores within the
        margin."""
        quality = self.quality(entry)
        good = quality is not None and quality.verdict == NOT_WORSE and entry.word != "broken"
        return entry.exact or good


@dataclass(frozen=True)
class Run:
    """A run as `bench.analyse.analyse` makes it. identity: study.json; fairness, gate: by decoder;
    machine: None where its rates were not measured; figures: those that its entries have; tables:
    by name, all that is exported and all that a report shows besides the entries' figures
    (`bench.analyse.tables`); folders: of the replicates that this pools
    (`bench.analyse.replicates`), none where it is one run; beside: runs in this folder that are on
    the same prompts, and no part of this."""

    folder: Path
    study: str
    sections: list[Section]
    rows: pd.DataFrame
    identity: dict[str, Any] = field(default_factory=dict)
    fairness: dict[str, Fairness] = field(default_factory=dict)
    gate: dict[str, Verdict] = field(default_factory=dict)
    machine: MachineRates | None = None
    figures: tuple[Figure, ...] = FIGURES
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    beside: tuple[Path, ...] = ()

    @property
    def title(self) -> str:
        """`main@2`, or `main@2, 3 replicates`."""
        return self.study + f", {plural(len(self.folders), 'replicate')}" * bool(self.folders)

    @property
    def entries(self) -> list[Entry]:
        return [entry for section in self.sections for entry in section.entries]

    @property
    def specs(self) -> dict[str, dict[str, Any]]:
        """The decoders' specifications by their names in the study, with what they sample with,
        flat (`bench.store.facts.flat`)."""
        decoders = self.identity.get("config", {}).get("decoders", ())
        return {
            one["name"]: flat({**one.get("spec", {}), "sampling": one.get("sampling") or {}})
            for one in decoders
        }

    @property
    def all_failed(self) -> bool:
        return all(entry.failed for entry in self.entries if entry.role is not Role.RESEED)

    def lines(self, name: str, section: Section | None = None) -> list[dict[str, Any]]:
        """The rows of a table, or those about a section, with decoders in the order of the entries;
        none where there is no such table."""
        lines = to_dicts(self.tables.get(name, pd.DataFrame()))
        if section is not None and lines and "section" in lines[0]:
            return [line for line in lines if line["section"] == section.title]
        if not lines or "decoder" not in lines[0]:
            return lines
        entries = self.entries if section is None else section.entries
        order = {entry.name: at for at, entry in enumerate(entries)}
        known = [line for line in lines if line["decoder"] in order]
        return sorted(known, key=lambda line: order[line["decoder"]])

    @property
    def roofline(self) -> dict[str, dict[str, Any]]:
        """The lines of the table `roofline` by decoder."""
        return {line["decoder"]: line for line in self.lines("roofline")}

    @property
    def marks(self) -> list[tuple[str, str]]:
        """Lists (mark, reason) of what is `MARKED`, each once: footnote n is the n-th."""
        every = [mark(e) for e in self.entries for mark in (self._verdict_mark, self._speed_mark)]
        reasons = (line["unmeasured"] for line in self.lines("batches"))
        every += [(UNMEASURED, why) for why in reasons if why]  # of batch sizes
        known = dict.fromkeys(filter(None, every))
        return sorted(known, key=lambda mark: MARKED.index(mark[0]))

    def speed_mark(self, entry: Entry) -> str:
        """Writes `unfair baseline (1)`: the mark of a speed-up with its footnote; "" without."""
        return self.numbered(self._speed_mark(entry))

    def verdict(self, entry: Entry) -> str:
        """Writes `broken (1)`: the verdict, with its footnote where it has one."""
        return self.numbered(self._verdict_mark(entry)) or entry.word

    def numbered(self, mark: tuple[str, str] | None) -> str:
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

    def eager(self, entry: Entry) -> bool:
        """Whether a piece of an entry was not compiled where others' are."""
        return entry.name in self.fairness and bool(self.fairness[entry.name].mixed)


def to_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in line.items()} for line in table.to_dict("records")]


def as_text(value: Any) -> str:
    """The text of a cell; "" for None and NaN."""
    return "" if value is None or value != value else str(value)


def in_display_order(run: Run) -> Run:
    """Sorts the decoders of a run into the order of all tables and charts: AR, then exact decoders,
    then relaxed ones, each by its speed."""

    def order(entry: Entry) -> tuple[bool, int, float]:
        speed = entry.number("speedup")
        fastest_first = math.inf if math.isnan(speed) else -speed
        return entry.failed, DIVISIONS.index(entry.division), fastest_first

    sections = []
    for section in run.sections:
        rest = [e for e in section.entries if e.role is Role.DECODER]
        first = [e for e in section.entries if e.role is not Role.DECODER]
        sections.append(replace(section, entries=[*first, *sorted(rest, key=order)]))
    return replace(run, sections=sections)
