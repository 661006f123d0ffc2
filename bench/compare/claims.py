"""The claims of papers, and which decoders of a run they are about.

claims.csv has one row per claim, in our words: the figure, the decoder that is better in it, the
one that it is better than, and the size that the paper gives. A published figure needs the paper's
weights and GPU; a claim compares two decoders of one run, on any model. METHODS5, 4.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bench.compare.published import FOLDER
from bench.config.arguments import groups
from decoders.errors import DecoderError, unknown
from decoders.spec import PARTS

TABLE = FOLDER / "claims.csv"
COLUMNS = (
    "id",
    "paper",
    "arxiv",
    "says",
    "figure",
    "better",
    "than",
    "by",
    "published",
    "source",
    "needs",
    "once",
)
REQUIRED = ("id", "paper", "arxiv", "says", "figure", "source")
RATIO, DIFFERENCE, VERDICT = "ratio", "difference", "verdict"
FIGURES = {  # name -> how its two sides are compared; VERDICT: one side, judged by gate or margin
    "codes_per_forward": RATIO,
    "forwards": RATIO,
    "speedup": RATIO,
    "speedup_at_tv": RATIO,
    "clip": DIFFERENCE,
    "output_tv": DIFFERENCE,
    "acceptance": DIFFERENCE,
    "bound": DIFFERENCE,
    "lossless": VERDICT,
    "not_worse": VERDICT,
}
ALONE = ("bound", "lossless", "not_worse")  # figures of one decoder: `than` stays empty
WORD = re.compile(r"(?P<key>[\w.]+)(?P<sign>>=|<=|=)(?P<value>\S+)")
LARGER, SMALLER, ANY = "larger", "smaller", "any"  # than on the other side; whatever it is
TEMPERATURE = "sampling.temperature"
Spec = Mapping[str, Any]  # a decoder's specification, flat (`bench.store.facts.flat`)


@dataclass(frozen=True)
class Selector:
    """Which decoders a claim is about, written as a decoder of a study: an option of the group
    decoder, options of parts, settings (`lantern drafter=any acceptance.delta>=0.3`).

    targets: class by part, "" for none; parts that are not in it may be anything. settings: key,
    sign and value; `larger` and `smaller` compare with the other side. named: settings in which the
    two sides of a claim may differ."""

    text: str
    targets: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[tuple[str, str, Any], ...] = ()

    @property
    def named(self) -> set[str]:
        return {key for key, _, _ in self.settings}

    @property
    def greedy(self) -> bool:
        """Whether it is about temperature 0; a claim is about sampling where it does not say."""
        return any(key == TEMPERATURE and value == 0 for key, _, value in self.settings)

    def matches(self, spec: Spec) -> bool:
        """Whether a decoder of this specification is meant."""
        parts = all((spec.get(f"{p}._target_") or "") == t for p, t in self.targets.items())
        return parts and all(
            _holds(spec[key], sign, value) if key in spec else value == ANY
            for key, sign, value in self.settings
            if key != TEMPERATURE
        )


def _holds(found: Any, sign: str, value: Any) -> bool:
    if value in (LARGER, SMALLER, ANY):
        return True
    if sign == "=":
        return bool(found == value)
    return isinstance(found, int | float) and (found >= value if sign == ">=" else found <= value)


def comparable(better: Selector, one: Spec, than: Selector, other: Spec) -> bool:
    """Whether two decoders differ in nothing but what a claim names: parts are of one class, and
    settings that both have are equal, unless a selector names them."""
    differ = {p for p in PARTS if one.get(f"{p}._target_") != other.get(f"{p}._target_")}
    if not differ <= {*better.targets, *than.targets}:
        return False
    free = {"name", *better.named, *than.named, *(f"{part}._target_" for part in differ)}
    for key in one.keys() & other.keys():
        weights = "drafter" in differ and key.startswith("drafter.")  # other nets have others
        if key not in free and not weights and one[key] != other[key]:
            return False
    orders = {(key, value) for key, _, value in better.settings if value in (LARGER, SMALLER)}
    return all(
        key in one
        and key in other
        and one[key] != other[key]
        and (one[key] > other[key]) == (value == LARGER)
        for key, value in orders
    )


@dataclass(frozen=True)
class Claim:
    """A row of claims.csv. figure: of `FIGURES`; depth: of acceptance@DEPTH, deeper: and below;
    than: None for `ALONE`; by: the least ratio or difference that keeps the claim; within: how far
    apart two that do the same may be, NaN for other claims; published: the paper's own size, NaN
    where it gives none; needs: the study that measures both; once: what was found of a claim that
    no run can judge, and where."""

    id: str
    paper: str
    arxiv: str
    says: str
    figure: str
    better: Selector | None
    than: Selector | None
    by: float
    within: float
    published: float
    source: str
    needs: str
    once: str
    line: int
    depth: int = 0
    deeper: bool = False

    @property
    def kind(self) -> str:
        return FIGURES[self.figure]

    @property
    def neutral(self) -> float:
        """Of no effect."""
        return 1.0 if self.kind == RATIO else 0.0


def load_claims(path: Path = TABLE) -> list[Claim]:
    """Reads claims.csv. Raises DecoderError with the line and column of a cell that cannot be, what
    was expected and what was found."""
    bad = pd.errors.ParserWarning  # of a first row that is too long
    try:
        with warnings.catch_warnings(action="error", category=bad):
            table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (ValueError, bad) as error:  # pandas' others are a ValueError, as that of other text is
        raise DecoderError(
            f"{path.name} must be a table of {len(COLUMNS)} columns in UTF-8, found: "
            f"{str(error).strip()}; put a cell that has a comma in quotes"
        ) from error
    if [*table.columns] != [*COLUMNS]:
        raise DecoderError(
            f"{path.name}:1 must have the columns {', '.join(COLUMNS)}, found "
            f"{', '.join(table.columns)}; correct them in {path}"
        )
    claims, lines = list[Claim](), dict[str, int]()
    for line, record in enumerate(table.to_dict("records"), 2):
        cells = {str(name): str(cell).strip() for name, cell in record.items()}
        try:
            claim = _claim(line, cells)
        except _BadCellError as bad:
            where = f"{path.name}:{line}.{bad.column}"
            raise DecoderError(
                f"{where} must be {bad.expected}, found {cells[bad.column]!r}; correct it in {path}"
            ) from bad
        if claim.id in lines:
            raise DecoderError(
                f"{path.name}:{line}.id must be new, found {claim.id!r}, which line "
                f"{lines[claim.id]} has too; correct it in {path}"
            )
        lines[claim.id] = line
        claims.append(claim)
    return claims


class _BadCellError(ValueError):
    def __init__(self, column: str, expected: str) -> None:
        super().__init__(expected)
        self.column, self.expected = column, expected


def _claim(line: int, cells: Mapping[str, str]) -> Claim:
    for name in REQUIRED:
        if not cells[name]:
            raise _BadCellError(name, "given")
    if not re.fullmatch(r"\w+", cells["id"]):
        raise _BadCellError("id", "letters, digits and _")
    figure, at, level = cells["figure"].partition("@")
    if figure not in FIGURES or bool(at) != (figure == "acceptance"):
        raise _BadCellError("figure", unknown("figure", cells["figure"], [*FIGURES]))
    if at and not re.fullmatch(r"[1-9]\d*\+?", level):
        raise _BadCellError("figure", "acceptance@DEPTH, or acceptance@DEPTH+ for all deeper too")
    better, than = (_selector(cells, side) for side in ("better", "than"))
    if better is None and not cells["once"]:
        raise _BadCellError("better", "a selector, where `once` does not say what was found")
    if (than is None) != (better is None or figure in ALONE):
        expected = f"empty for {figure}" if than else "a selector: what it is better than"
        raise _BadCellError("than", expected)
    if better is not None and not cells["needs"]:
        raise _BadCellError("needs", "the study that measures it")
    if cells["needs"] and cells["needs"] not in groups()["study"]:
        raise _BadCellError("needs", unknown("study", cells["needs"], groups()["study"]))
    by, within = _least(cells, figure, better)
    return Claim(
        cells["id"],
        cells["paper"],
        cells["arxiv"],
        cells["says"],
        figure,
        better,
        than,
        by,
        within,
        _number(cells, "published"),
        cells["source"],
        cells["needs"],
        cells["once"],
        line,
        int(level.rstrip("+") or 0),
        level.endswith("+"),
    )


def _least(cells: Mapping[str, str], figure: str, better: Selector | None) -> tuple[float, float]:
    """`by` and `within` of a claim."""
    nan = float("nan")
    kind, text = FIGURES[figure], cells["by"]
    if kind == VERDICT or better is None:
        if text:
            raise _BadCellError("by", "empty: gate and margin judge it, or no run does")
        return nan, nan
    if text.startswith("within "):
        within = _number({"by": text.removeprefix("within ")}, "by")
        if not within > 0:
            raise _BadCellError("by", "`within X`, X above 0")
        return nan, within
    by, least = _number(cells, "by"), 1 if kind == RATIO else 0
    if not by >= least:
        raise _BadCellError("by", f"a {kind} of {least} or more, or `within X`")
    return by, nan


def _number(cells: Mapping[str, str], column: str) -> float:
    try:
        value = float(cells[column] or "nan")
    except ValueError:
        value = float("inf")
    if abs(value) == float("inf"):
        raise _BadCellError(column, "a number")
    return value


def _selector(cells: Mapping[str, str], side: str) -> Selector | None:
    if not cells[side]:
        return None
    try:
        return read_selector(cells[side])
    except DecoderError as error:
        raise _BadCellError(side, f"a selector ({error})") from error


def read_selector(text: str) -> Selector:
    """Reads `lantern drafter=any acceptance.delta>=0.3`. Raises DecoderError on an unknown decoder,
    part, option or setting, with the nearest known ones."""
    options, targets = groups(), dict[str, str]()
    settings = list[tuple[str, str, Any]]()
    for at, word in enumerate(text.split()):
        found = WORD.fullmatch(word)
        if not at and word.isidentifier():
            if word not in options["decoder"]:
                raise DecoderError(unknown("decoder", word, options["decoder"]))
            targets = dict(_parts_of(word))
        elif found is None:
            raise DecoderError(f"expected part=option or part.setting=value, found {word!r}")
        elif found["key"] in PARTS:
            part, option = found["key"], found["value"]
            if option == ANY:
                targets.pop(part, None)
                continue
            known = options.get(part, {})
            if option not in known or found["sign"] != "=":
                raise DecoderError(unknown(part, option, [*known, ANY]))
            targets[part] = _target(known[option])
        else:
            known_settings = _settings()
            if found["key"] not in known_settings:
                raise DecoderError(unknown("setting", found["key"], known_settings))
            settings.append((found["key"], found["sign"], yaml.safe_load(found["value"])))
    return Selector(text, targets, tuple(settings))


def _target(text: str) -> str:
    return str(yaml.safe_load(text).get("_target_") or "")


@cache
def _parts_of(decoder: str) -> tuple[tuple[str, str], ...]:
    """The classes of the parts of an option of the group decoder, as its YAML composes them."""
    options = groups()
    config = yaml.safe_load(options["decoder"][decoder])
    chosen = dict.fromkeys((part for part in PARTS if part != "loop"), "none")
    for one in config["defaults"]:
        if isinstance(one, Mapping):
            chosen |= {str(k).split("/")[-1]: v for k, v in one.items() if "/" in str(k)}
    targets = {part: _target(options[part][option]) for part, option in chosen.items()}
    return (("loop", config["loop"]["_target_"]), *targets.items())


@cache
def _settings() -> frozenset[str]:
    """Settings that a decoder may have: `acceptance.delta`."""
    options = groups()
    parts = [(part, text) for part in PARTS for text in options.get(part, {}).values()]
    known = {f"{part}.{key}" for part, text in parts for key in yaml.safe_load(text) or ()}
    for text in options["decoder"].values():
        known |= {f"loop.{key}" for key in yaml.safe_load(text)["loop"]}
    return frozenset({key for key in known if not key.endswith("_target_")} | {TEMPERATURE})
