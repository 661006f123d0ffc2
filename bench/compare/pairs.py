"""Which measured rows speak of a published one.

A decoder's YAML says under `published` (`bench.config.schema.PublishedConfig`) what its method is
called in published.csv and how rows of a run are recognised as it.

Of a published row and the measured ones every setting agrees, differs, or is not stated by the
source. Among the rows of the same method, those that agree on the model are taken first, then on
the temperature, and so on; where none agrees, the others stay and the difference becomes an
obstacle. A setting that is not stated is no obstacle: it is written down as assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.compare.measured import Measured
from bench.compare.published import Names, Published, settings_text

# Whether a setting agrees (None: the source does not state it); the obstacle, or what is assumed.
Setting = tuple[bool | None, str]
AGREES: Setting = True, ""


@dataclass(frozen=True)
class Pair:
    """measured None: the run has no such method, and `obstacles` says so. same_model: as far as the
    source tells; unstated: settings of the method (k, delta) that the source does not state."""

    published: Published
    measured: Measured | None
    obstacles: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    same_model: bool = False
    unstated: str = ""


def is_method(row: Measured, name: str, names: Names) -> bool:
    """Whether a measured row is of a published method, by its loop, drafter or proposer, rule and
    tree."""
    if name not in names.methods:
        return False
    parts = {"loop": "speculative"} | names.methods[name].parts
    return all(row.parts[part].name == wanted for part, wanted in parts.items())


def pairs(published: Published, rows: Sequence[Measured], names: Names) -> list[Pair]:
    """The measured rows that come nearest to a published one; one Pair without a row if none."""
    left = [row for row in rows if is_method(row, published.method, names)]
    if not left:
        known = published.method in names.methods
        nowhere = "has no rows that conf/decoder can recognise"
        reason = "was not measured in this run" if known else nowhere
        return [Pair(published, None, (f"{published.method} {reason}",))]
    checked = {id(row): settings(published, row, names) for row in left}
    for name in checked[id(left[0])]:
        left = [row for row in left if checked[id(row)][name][0] is not False] or left
    return [_pair(published, row, checked[id(row)]) for row in left]


def _pair(published: Published, row: Measured, checked: Mapping[str, Setting]) -> Pair:
    obstacles, assumed = (
        tuple(text for agrees, text in checked.values() if agrees is wanted)
        for wanted in (False, None)
    )
    agrees, text = checked["params"]
    unstated = text if agrees is None else ""
    return Pair(published, row, obstacles, assumed, checked["model"][0] is not False, unstated)


def settings(published: Published, row: Measured, names: Names) -> dict[str, Setting]:
    """Every setting that decides whether two figures are of the same thing, most decisive first."""
    return {
        "model": _model(published, row, names),
        "temperature": _number("temperature", published.temperature, row.temperature),
        "tree": _tree(names.methods[published.method].tree, row),
        "cfg": _number("cfg", published.cfg, row.cfg),
        "top-k": _number("top-k", published.top_k, row.top_k),
        "params": _params(published.params, names.methods[published.method].params, row),
        "prompts": _prompts(published.dataset, names.prompts.get(row.prompts, ""), row),
    }


def _model(published: Published, row: Measured, names: Names) -> Setting:
    if not published.model:
        return False, "the source names no model"
    here = names.models.get(row.model, {})
    name = here.get("model", row.model)
    if published.resolution in (None, here.get("resolution")):
        if published.model == name:
            return AGREES
        if name in names.families.get(published.model, ()):
            sure = published.resolution is not None
            return True if sure else None, f"{published.model} is {name}"
    return _other("model", published.model, row.model)


def _number(name: str, published: float | None, ours: float) -> Setting:
    if published is None:
        return None, f"{name} {ours:g}"
    if math.isclose(published, ours):
        return AGREES
    return _other(name, f"{published:g}", f"{ours:g}")


def _tree(wanted: Mapping[str, float], row: Measured) -> Setting:
    """The tree of the authors' code; a smaller one drafts less and is verified faster."""
    here = {key: value for key in wanted if (value := row.parts["tree"].number(key)) is not None}
    if all(value == wanted[key] for key, value in here.items()):
        return AGREES
    return _other("tree", settings_text(wanted), settings_text(here))


def _params(wanted: Mapping[str, float], places: Mapping[str, str], row: Measured) -> Setting:
    """places: where ours are, as `acceptance.k` or `proposer.window`."""
    here: dict[str, float] = {}
    for key in {**places, **wanted}:
        part, _, name = places.get(key, f"acceptance.{key}").partition(".")
        value = row.parts["drafter" if part == "proposer" else part].number(name)
        here |= {} if value is None else {key: value}
    differing = [key for key in wanted if key in here and not math.isclose(here[key], wanted[key])]
    if differing:
        stated, found = ({key: side[key] for key in differing} for side in (wanted, here))
        return _other("settings", settings_text(stated), settings_text(found))
    unstated = {
        key: here[key]
        for key, place in places.items()
        if place.startswith("acceptance.") and key in here and key not in wanted
    }
    return None if unstated else True, settings_text(unstated)


def _prompts(published: str, ours: str, row: Measured) -> Setting:
    if not published or not ours:
        return None, f"prompts as published ({published or 'not stated'})"
    return AGREES if published.startswith(ours) else _other("prompts", published, row.prompts)


def _other(name: str, published: str, here: str) -> Setting:
    return False, f"other {name} (published {published}, here {here})"
