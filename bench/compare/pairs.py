"""Finds the measured decoders that can be compared with a published row.

A decoder's YAML says under `published` (`bench.compare.published.Method`) what its method is
called in published.csv and how rows of a run are recognised as it.

Of a published row and the measured ones every setting agrees, differs, or is not stated by the
source. Among the decoders of the same method, those that agree on the model are taken first, then
on the temperature, and so on; where none agrees, the others stay and the difference becomes an
obstacle. A setting that is not stated is no obstacle: it is written down as assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.analyse.paired import mal_interval
from bench.analyse.run_data import Entry, Role, RunData, as_text
from bench.compare.published import Names, Published, settings_text
from bench.data.errors import FolderError
from metrics.stats import Interval

FIGURES = ("speedup", "mal", "latency_s", "fid", "clip", "precision", "recall", "hps")
PARTS = ("loop", "drafter", "tree", "acceptance")
# Whether a setting agrees (None: the source does not state it); the obstacle, or what is assumed.
Setting = tuple[bool | None, str]
AGREES: Setting = True, ""


@dataclass(frozen=True)
class Part:
    """The label of a part (`decoders.spec`) taken apart; a bare word is a setting of itself
    (`static(naive_extend_57, nodes=57)`)."""

    name: str
    settings: Mapping[str, str]

    @classmethod
    def of(cls, label: str) -> Part:
        """Reads a cell of summary.csv; "" is the part called none."""
        match = re.fullmatch(r"([^(]*)(?:\((.*)\))?", label.strip(), re.DOTALL)
        if match is None:
            return cls(label, {})
        settings = (
            text.strip().partition("=") for text in (match[2] or "").split(",") if text.strip()
        )
        return cls(match[1].strip() or "none", {key: value or key for key, _, value in settings})

    def number(self, key: str) -> float | None:
        """Reads a numerical setting, None where it is absent or a word."""
        try:
            return float(self.settings[key])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, eq=False)
class Candidate:
    """A decoder of a run. parts: by `PARTS`, a proposer in the drafter's place; line: its row of
    summary.csv, and its scores."""

    entry: Entry
    run: RunData = field(repr=False)
    parts: Mapping[str, Part]
    line: Mapping[str, Any]

    @property
    def setting(self) -> tuple[str, float, float]:
        """What it has in common with its baseline: model, temperature, guidance."""
        number = self.entry.number
        return self.entry.text("model"), number("temperature"), number("cfg")

    @property
    def prompts(self) -> str:
        """The prompt set; "" where it is not known."""
        return str(self.run.identity.get("config", {}).get("prompts", {}).get("name", ""))

    @property
    def device(self) -> str:
        """The GPU; "cpu" where it ran on none."""
        device = self.entry.text("device")
        return device if device == "cpu" else str(self.entry.ok.gpu.iloc[0]) or device

    def figure(self, metric: str) -> Interval:
        """Returns one of `FIGURES`; NaN where it was not measured."""
        column = "latency_mean_s" if metric == "latency_s" else metric
        ends = (float(self.line.get(column + end, math.nan)) for end in ("", "_lo", "_hi"))
        figure = Interval(*ends)
        pooled = mal_interval(self.entry.ok) if metric == "mal" else None
        return Interval(figure.value, pooled.lo, pooled.hi) if pooled else figure

    def features(self, metric: str) -> str:
        """Names what a quality figure was made with; the embedded CLIP is both FID's features and
        the CLIP score's network."""
        fid = as_text(self.line.get("fid_features", ""))
        if metric in ("precision", "recall"):
            return as_text(self.line.get("prc_features", "")) or fid
        features = as_text(self.line.get(f"{metric}_features", ""))
        return features or (fid if metric == "clip" and fid.endswith("-clip") else "")


def measured_decoders(run: RunData) -> list[Candidate]:
    """Returns a run's decoders but reseeds and those that failed. Raises FolderError where there is
    none."""
    rows = [
        Candidate(
            entry,
            run,
            {name: Part.of(entry.text(name)) for name in PARTS},
            run.scores.get(entry.name, {}) | entry.row,
        )
        for entry in run.entries
        if entry.role is not Role.RESEED and not entry.failed
    ]
    if not rows:
        raise FolderError(
            f"{run.folder} has no decoder with figures; see the column status of summary.csv"
        )
    return rows


def is_method(row: Candidate, name: str, names: Names) -> bool:
    """Whether a decoder is of a published method, by its loop, drafter or proposer, rule and
    tree."""
    if name not in names.methods:
        return False
    parts = {"loop": "speculative"} | names.methods[name].parts
    return all(row.parts[part].name == wanted for part, wanted in parts.items())


def nearest(
    published: Published, rows: Sequence[Candidate], names: Names
) -> list[tuple[Candidate, dict[str, Setting]]]:
    """Finds the decoders nearest to a published row, each with the settings that decide whether two
    figures are of the same thing."""
    same = [row for row in rows if is_method(row, published.method, names)]
    rest = [(row, compare_settings(published, row, names)) for row in same]
    for name in rest[0][1] if rest else ():
        rest = [pair for pair in rest if pair[1][name][0] is not False] or rest
    return rest


def compare_settings(published: Published, row: Candidate, names: Names) -> dict[str, Setting]:
    """Compares the settings of a published row and a decoder, most decisive first."""
    method, (_, temperature, cfg) = names.methods[published.method], row.setting
    top_k = float(row.entry.ok.top_k.iloc[0])
    return {
        "model": _model(published, row, names),
        "temperature": _number("temperature", published.temperature, temperature),
        "tree": _tree(method.tree, row),
        "cfg": _number("cfg", published.cfg, cfg),
        "top-k": _number("top-k", published.top_k, top_k),
        "params": _params(published.settings, method.params, row),
        "prompts": _prompts(published.dataset, names.prompts.get(row.prompts, ""), row),
    }


def _model(published: Published, row: Candidate, names: Names) -> Setting:
    if not published.model:
        return False, "the source names no model"
    here = names.models.get(row.entry.text("model"), {})
    name = here.get("model", row.entry.text("model"))
    if published.resolution in (None, here.get("resolution")):
        if published.model == name:
            return AGREES
        if name in names.families.get(published.model, ()):
            sure = published.resolution is not None
            return True if sure else None, f"{published.model} is {name}"
    return _other("model", published.model, row.entry.text("model"))


def _number(name: str, published: float | None, ours: float) -> Setting:
    if published is None:
        return None, f"{name} {ours:g}"
    if math.isclose(published, ours):
        return AGREES
    return _other(name, f"{published:g}", f"{ours:g}")


def _tree(wanted: Mapping[str, float], row: Candidate) -> Setting:
    """Compares with the authors' tree: a smaller one drafts less and is verified faster."""
    here = {key: value for key in wanted if (value := row.parts["tree"].number(key)) is not None}
    if all(value == wanted[key] for key, value in here.items()):
        return AGREES
    return _other("tree", settings_text(wanted), settings_text(here))


def _params(wanted: Mapping[str, float], places: Mapping[str, str], row: Candidate) -> Setting:
    """Compares the settings that the paper states with ours. places: where each of ours is set, as
    `acceptance.k` or `proposer.window`."""
    here: dict[str, float] = {}
    for key in {**places, **wanted}:
        part, _, name = places.get(key, f"acceptance.{key}").partition(".")
        value = row.parts["drafter" if part == "proposer" else part].number(name)
        here |= {} if value is None else {key: value}
    differing = {k: v for k, v in wanted.items() if k in here and not math.isclose(here[k], v)}
    if differing:
        ours = {key: here[key] for key in differing}
        return _other("settings", settings_text(differing), settings_text(ours))
    unstated = {
        key: here[key]
        for key, place in places.items()
        if place.startswith("acceptance.") and key in here and key not in wanted
    }
    return None if unstated else True, settings_text(unstated)


def _prompts(published: str, ours: str, row: Candidate) -> Setting:
    if not published or not ours:
        return None, f"prompts as published ({published or 'not stated'})"
    return AGREES if published.startswith(ours) else _other("prompts", published, row.prompts)


def _other(name: str, published: str, here: str) -> Setting:
    return False, f"other {name} (published {published}, here {here})"
