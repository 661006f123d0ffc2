"""The claims of papers, and which decoders of a run they are about.

claims.csv has one row per claim, in our words: the figure, the decoder that is better in it, the
one that it is better than, and the size that the paper gives. A published figure needs the paper's
weights and GPU; a claim compares two decoders of one run, on any model. METHODS5, 4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bench.compare.published import FOLDER, read_cells
from bench.config.arguments import groups
from decoders.compose import resolve
from decoders.errors import DecoderError, unknown
from decoders.kinds import hints_of, validate
from decoders.spec import PARTS

TABLE = FOLDER / "claims.csv"
COLUMNS = (
    "id", "paper", "arxiv", "says", "figure", "better", "than", "published", "within", "source",
    "needs", "once",
)  # fmt: skip
REQUIRED = ("id", "paper", "arxiv", "says", "figure", "source")
RATIO, DIFFERENCE, VERDICT = "ratio", "difference", "verdict"
FIGURES = {  # name -> how its two sides are compared; VERDICT: of one decoder, `than` stays empty
    "codes_per_forward": RATIO,
    "forwards": RATIO,
    "speedup": RATIO,
    "speedup_at_tv": RATIO,
    "clip": DIFFERENCE,
    "output_tv": DIFFERENCE,
    "acceptance": DIFFERENCE,
    "lossless": VERDICT,
    "bound": VERDICT,
    "output_bound": VERDICT,
    "not_worse": VERDICT,
}
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
    """A row of claims.csv, whose columns come first. figure: of `FIGURES`; depth: of
    acceptance@DEPTH, deeper: and below; than: None for figures of one decoder; published: the
    paper's own size, NaN where it gives none; within: how far apart two that do the same may be,
    NaN for other claims; needs: the study that measures both; once: what refutes a claim without a
    run, and where it was found."""

    id: str
    paper: str
    arxiv: str
    says: str
    figure: str
    better: Selector | None
    than: Selector | None
    published: float
    within: float
    source: str
    needs: str
    once: str
    depth: int = 0
    deeper: bool = False

    @property
    def kind(self) -> str:
        return FIGURES[self.figure]

    @property
    def neutral(self) -> float:
        """Of no effect."""
        return 1.0 if self.kind == RATIO else 0.0

    @property
    def by(self) -> float:
        """The effect that the claim needs: half of the published one, of a ratio in the logarithm;
        where none is published, more than `neutral`."""
        if math.isnan(self.published):
            return self.neutral
        return math.sqrt(self.published) if self.kind == RATIO else self.published / 2


def load_claims(path: Path = TABLE) -> list[Claim]:
    """Reads claims.csv. Raises DecoderError with the line and column of a cell that cannot be, what
    was expected and what was found."""
    table = read_cells(path, len(COLUMNS))
    if [*table.columns] != [*COLUMNS]:
        raise DecoderError(
            f"{path.name}:1 must have the columns {', '.join(COLUMNS)}, found "
            f"{', '.join(table.columns)}; correct them in {path}"
        )
    claims, lines = list[Claim](), dict[str, int]()
    for line, record in enumerate(table.to_dict("records"), 2):
        cells = {str(name): str(cell).strip() for name, cell in record.items()}
        try:
            claim = _claim(cells)
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


def _claim(cells: Mapping[str, str]) -> Claim:
    for name in REQUIRED:
        if not cells[name]:
            raise _BadCellError(name, "given")
    if not re.fullmatch(r"\w+", cells["id"]):
        raise _BadCellError("id", "letters, digits and _")
    figure, at, level = cells["figure"].partition("@")
    if figure not in FIGURES:
        raise _BadCellError("figure", unknown("figure", figure, [*FIGURES]))
    if not re.fullmatch(r"@[1-9]\d*\+?" if figure == "acceptance" else "", at + level):
        expected = "acceptance@DEPTH (acceptance@DEPTH+: and deeper), or another without @"
        raise _BadCellError("figure", expected)
    better, than = (_selector(cells, side) for side in ("better", "than"))
    if better is None and not cells["once"]:
        raise _BadCellError("better", "a selector, where `once` does not say what was found")
    if (than is None) != (better is None or FIGURES[figure] == VERDICT):
        expected = f"empty for {figure}" if than else "a selector: what it is better than"
        raise _BadCellError("than", expected)
    for order, other in ((LARGER, SMALLER), (SMALLER, LARGER)):
        if _orders(better, order) != _orders(than, other):
            raise _BadCellError("than", f"a selector that says {other} where `better` says {order}")
    if better is not None and not cells["needs"]:
        raise _BadCellError("needs", "the study that measures it")
    if cells["needs"] and cells["needs"] not in groups()["study"]:
        raise _BadCellError("needs", unknown("study", cells["needs"], groups()["study"]))
    published, within = (_size(cells, name, figure) for name in ("published", "within"))
    if not math.isnan(published + within):
        raise _BadCellError("within", "empty where a size is published")
    read: dict[str, Any] = {"better": better, "than": than, "published": published}
    read |= {"within": within, "figure": figure, "depth": int(level.rstrip("+") or 0)}
    return Claim(**{**cells, **read}, deeper=level.endswith("+"))


def _orders(selector: Selector | None, order: str) -> set[str]:
    """The settings of which a selector says that they are larger, or smaller, than on the other
    side."""
    return {key for key, _, value in selector.settings if value == order} if selector else set()


def _size(cells: Mapping[str, str], column: str, figure: str) -> float:
    """A cell of `published` or `within`; NaN where it is empty."""
    if not cells[column]:
        return math.nan
    if FIGURES[figure] == VERDICT:
        raise _BadCellError(column, f"empty for {figure}, which is judged by no size")
    least = 1 if column == "published" and FIGURES[figure] == RATIO else 0
    try:
        value = float(cells[column])
    except ValueError:
        value = math.nan
    if not least < value < math.inf:
        raise _BadCellError(column, f"empty or a number above {least}")
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
    part, option or setting, with the nearest known ones, and on a value that it cannot have."""
    options, targets = groups(), dict[str, str]()
    words = list[re.Match[str]]()
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
            known = options.get(part, {})
            if found["sign"] != "=":
                raise DecoderError(f"expected {part}=option, found {word!r}")
            if option not in (*known, ANY):
                raise DecoderError(unknown(part, option, [*known, ANY]))
            targets.pop(part, None)
            if option != ANY:
                targets[part] = _target(known[option])
        else:
            words.append(found)
    owners = dict[str, dict[str, Any]]()  # setting -> class -> default, of the parts
    for part, target, setting, default in _settings():
        if targets.get(part, target) == target:
            owners.setdefault(f"{part}.{setting}", {})[target] = default
    for match in words:
        if match["key"] not in owners:
            raise DecoderError(unknown("setting", match["key"], owners))
    settings = ((one["key"], one["sign"], _value(one, owners[one["key"]])) for one in words)
    return Selector(text, targets, tuple(settings))


def _value(word: re.Match[str], owners: Mapping[str, Any]) -> Any:
    """The value of a setting that these classes have with these defaults: one of them takes it."""
    key, sign, text = word["key"], word["sign"], word["value"]
    ordered = any(type(default) in (int, float) for default in owners.values())
    words = [*[LARGER, SMALLER] * ordered, ANY]
    if sign == "=" and text in words:
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if sign != "=" and not (ordered and type(value) in (int, float)):
        expected = "a number" if ordered else "="
        raise DecoderError(f"expected {expected} in {key}, found {sign + text!r}")
    refusals = []
    for target, default in owners.items():
        hint = hints_of(resolve(target)).get(key.rpartition(".")[2], Any) if target else float
        try:
            if value != default:
                validate(key, value, hint)
            return value
        except DecoderError as error:
            refusals.append(error)
    raise DecoderError(f"{refusals[0]} (known too: {', '.join(words)})")


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
def _settings() -> tuple[tuple[str, str, str, Any], ...]:
    """Settings that a decoder may have: part, class, name and default."""
    options = groups()
    every = [
        *((p, yaml.safe_load(text)) for p in PARTS for text in options.get(p, {}).values()),
        *(("loop", yaml.safe_load(text)["loop"]) for text in options["decoder"].values()),
        ("sampling", {"temperature": 1.0}),
    ]
    return tuple(
        (part, config.get("_target_") or "", name, value)
        for part, config in every
        for name, value in config.items()
        if name != "_target_"
    )
