"""Which measured rows a published row speaks of, and which settings keep them apart.

Every setting agrees, differs, or is not stated by the source. Among the rows of the same method,
those that agree on the model are taken first, then on the temperature, and so on; where none
agrees, the others stay and the difference becomes an obstacle. A setting that is not stated is no
obstacle: it is written down as assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.compare.measured import Measured
from bench.compare.methods import Names
from bench.compare.published import Published, settings_text


@dataclass(frozen=True)
class Setting:
    """agrees None: the source does not state it. text: the obstacle, or what is assumed."""

    name: str
    agrees: bool | None
    text: str = ""


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
    tree. A table of an older version says no loop and no drafter, and knew only AR and drafters on
    trees."""
    if name not in names.methods:
        return False
    parts = {"loop": "speculative"} | names.methods[name].parts
    if row.loop is None:
        row_loop = "autoregressive" if row.rule.name == "none" else "speculative"
    else:
        row_loop = row.loop.name
    here = {"loop": row_loop, "acceptance": row.rule.name, "tree": row.tree.name}
    if row.drafter is not None:
        here["drafter"] = row.drafter.name
    elif "tree" in parts:
        here["drafter"] = parts.get("drafter", "")
    return all(here.get(part) == wanted for part, wanted in parts.items())


def pairs(published: Published, rows: Sequence[Measured], names: Names) -> list[Pair]:
    """The measured rows that come nearest to a published one; one Pair without a row if none."""
    left = [row for row in rows if is_method(row, published.method, names)]
    if not left:
        known = published.method in names.methods
        nowhere = "has no rows that conf/decoder can recognise"
        reason = "was not measured in this run" if known else nowhere
        return [Pair(published, None, (f"{published.method} {reason}",))]
    checked = {id(row): settings(published, row, names) for row in left}
    for at in range(len(checked[id(left[0])])):
        left = [row for row in left if checked[id(row)][at].agrees is not False] or left
    return [_pair(published, row, checked[id(row)]) for row in left]


def _pair(published: Published, row: Measured, checked: Sequence[Setting]) -> Pair:
    obstacles = tuple(s.text for s in checked if s.agrees is False)
    assumed = tuple(s.text for s in checked if s.agrees is None)
    unstated = next((s.text for s in checked if s.name == "params" and s.agrees is None), "")
    return Pair(published, row, obstacles, assumed, checked[0].agrees is not False, unstated)


def settings(published: Published, row: Measured, names: Names) -> list[Setting]:
    """Every setting that decides whether two figures are of the same thing, most decisive first."""
    return [
        _model(published, row, names),
        _number("temperature", published.temperature, row.temperature),
        _tree(published, row, names),
        _number("cfg", published.cfg, row.cfg),
        _number("top-k", published.top_k, row.top_k),
        _params(published, row, names),
        _dataset(published, row, names),
    ]


def _model(published: Published, row: Measured, names: Names) -> Setting:
    if not published.model:
        return Setting("model", False, "the source names no model")
    name, resolution = names.models.get(row.model, (row.model, math.nan))
    if published.resolution in (None, resolution):
        if published.model == name:
            return Setting("model", True)
        if name in names.families.get(published.model, ()):
            sure = published.resolution is not None
            return Setting("model", True if sure else None, f"{published.model} is {name}")
    other = f"other model (published {published.model}, here {row.model})"
    return Setting("model", False, other)


def _number(name: str, published: float | None, ours: float | None) -> Setting:
    if published is None:
        return Setting(name, None, f"{name} {'as here' if ours is None else f'{ours:g}'}")
    if ours is None:
        return Setting(name, None, f"our {name} is {published:g}")
    if math.isclose(published, ours):
        return Setting(name, True)
    return Setting(name, False, f"other {name} (published {published:g}, here {ours:g})")


def _tree(published: Published, row: Measured, names: Names) -> Setting:
    """The tree of the authors' code; a smaller one drafts less and is verified faster."""
    wanted = names.methods[published.method].tree
    here = {key: value for key in wanted if (value := row.tree.number(key)) is not None}
    if all(value == wanted[key] for key, value in here.items()):
        return Setting("tree", True)
    text = f"other tree (published {settings_text(wanted)}, here {settings_text(here)})"
    return Setting("tree", False, text)


def _ours(place: str, row: Measured) -> float | None:
    """Our value of `acceptance.k` or `drafter.window`; None where the row has no such setting."""
    part, _, key = place.partition(".")
    described = {"acceptance": row.rule, "drafter": row.drafter}[part]
    return None if described is None else described.number(key)


def _params(published: Published, row: Measured, names: Names) -> Setting:
    places = names.methods[published.method].params
    wanted = published.params
    ours = {key: _ours(places.get(key, f"acceptance.{key}"), row) for key in {**places, **wanted}}
    here = {key: value for key, value in ours.items() if value is not None}
    differing = [key for key in wanted if key in here and not math.isclose(here[key], wanted[key])]
    if differing:
        stated, found = ({key: side[key] for key in differing} for side in (wanted, here))
        text = f"other settings (published {settings_text(stated)}, here {settings_text(found)})"
        return Setting("params", False, text)
    unstated = {
        key: here[key]
        for key, place in places.items()
        if place.startswith("acceptance.") and key in here and key not in wanted
    }
    return Setting("params", None if unstated else True, settings_text(unstated))


def _dataset(published: Published, row: Measured, names: Names) -> Setting:
    ours = names.prompts.get(row.prompts, "")
    if not published.dataset or not ours:
        stated = published.dataset or "not stated"
        return Setting("prompts", None, f"prompts as published ({stated})")
    if published.dataset.startswith(ours):
        return Setting("prompts", True)
    text = f"other prompts (published {published.dataset}, here {row.prompts})"
    return Setting("prompts", False, text)
