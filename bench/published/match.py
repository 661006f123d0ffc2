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

from bench.published.measured import Measured
from bench.published.names import Names
from bench.published.table import Published, settings_text

OURS = {"k": "k", "delta": "delta", "lambda": "lambda"}  # settings of a rule that papers state
WINDOW = {"L": "window", "K": "candidates"}  # and of a Jacobi window


@dataclass(frozen=True)
class Setting:
    """agrees None: the source does not state it. text: the obstacle, or what is assumed."""

    name: str
    agrees: bool | None
    text: str


@dataclass(frozen=True)
class Pair:
    """measured None: the run has no such method, and `obstacles` says so. same_model: as far as the
    source tells; unstated: settings of the method (k, delta) that the source does not state."""

    published: Published
    measured: Measured | None
    obstacles: tuple[str, ...]
    assumed: tuple[str, ...]
    same_model: bool
    unstated: str = ""


def is_method(row: Measured, name: str, names: Names) -> bool:
    """Whether a measured row is of a published method, by its loop, drafter or proposer, rule and
    tree. A table of an older version says no loop and no drafter, and knew only AR and drafters on
    trees."""
    method = names.methods.get(name)
    if method is None:
        return False
    alone = "autoregressive" if row.rule.name == "none" else "speculative"
    loop = alone if row.loop is None else row.loop.name
    drafter = method.drafter if row.drafter is None and method.tree else ""
    drafters = ("", drafter if row.drafter is None else row.drafter.name)
    return (
        method.loop == loop
        and method.drafter in drafters
        and method.acceptance == row.rule.name
        and method.tree in ("", row.tree.name)
    )


def pairs(published: Published, rows: Sequence[Measured], names: Names) -> list[Pair]:
    """The measured rows that come nearest to a published one; one Pair without a row if none."""
    left = [row for row in rows if is_method(row, published.method, names)]
    if not left:
        known = published.method in names.methods
        reason = (
            "was not measured in this run" if known else "has no rows that names.yaml can recognise"
        )
        return [Pair(published, None, (f"{published.method} {reason}",), (), False)]
    checked = {id(row): settings(published, row, names) for row in left}
    for at in range(len(checked[id(left[0])])):
        agreeing = [row for row in left if checked[id(row)][at].agrees is not False]
        left = agreeing or left
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
        _params(published, row),
        _dataset(published, row, names),
    ]


def _model(published: Published, row: Measured, names: Names) -> Setting:
    if not published.model:
        return Setting("model", False, "the source names no model")
    name, resolution = names.models.get(row.model, (row.model, math.nan))
    other = f"other model (published {published.model}, here {row.model})"
    if published.resolution is not None and published.resolution != resolution:
        return Setting("model", False, other)
    if published.model == name:
        return Setting("model", True, "")
    if name in names.families.get(published.model, ()):
        sure = published.resolution is not None
        return Setting("model", True if sure else None, f"{published.model} is {name}")
    return Setting("model", False, other)


def _number(name: str, published: float | None, ours: float | None) -> Setting:
    if published is None:
        shown = "as here" if ours is None else f"{ours:g}"
        return Setting(name, None, f"{name} {shown}")
    if ours is None:
        return Setting(name, None, f"our {name} is {published:g}")
    if math.isclose(published, ours):
        return Setting(name, True, "")
    return Setting(name, False, f"other {name} (published {published:g}, here {ours:g})")


def _tree(published: Published, row: Measured, names: Names) -> Setting:
    """The tree of the authors' code; a smaller one drafts less and is verified faster."""
    protocol = names.methods[published.method].protocol
    found = {key: row.tree.number(key) for key in protocol}
    if any(value is not None and value != protocol[key] for key, value in found.items()):
        here = settings_text({key: value for key, value in found.items() if value is not None})
        wanted = settings_text(protocol)
        return Setting("tree", False, f"other tree (published {wanted}, here {here})")
    return Setting("tree", True, "")


def _ours(key: str, row: Measured) -> float | None:
    """Our value of a setting that a paper states; None where the row has no such setting."""
    if key in WINDOW:
        return None if row.drafter is None else row.drafter.number(WINDOW[key])
    return row.rule.number(OURS.get(key, key))


def _params(published: Published, row: Measured) -> Setting:
    rule = row.rule
    differing = {
        key: value
        for key, value in published.params.items()
        if (ours := _ours(key, row)) is not None and not math.isclose(ours, value)
    }
    unstated = {
        key: value
        for key in OURS
        if (value := rule.number(key)) is not None and key not in published.params
    }
    if differing:
        here = settings_text({key: _ours(key, row) or 0.0 for key in differing})
        text = f"other settings (published {settings_text(differing)}, here {here})"
        return Setting("params", False, text)
    if unstated:
        return Setting("params", None, settings_text(unstated))
    return Setting("params", True, "")


def _dataset(published: Published, row: Measured, names: Names) -> Setting:
    ours = names.prompts.get(row.prompts, "")
    if not published.dataset or not ours:
        return Setting(
            "prompts", None, f"prompts as published ({published.dataset or 'not stated'})"
        )
    if published.dataset.startswith(ours):
        return Setting("prompts", True, "")
    text = f"other prompts (published {published.dataset}, here {row.prompts})"
    return Setting("prompts", False, text)
