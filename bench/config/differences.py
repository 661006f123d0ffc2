"""What differs between two configurations or machines, in the words of a command line.

Why: a folder keeps the resolved configuration (`StudyConfig.measured`), whose names are those of
the dataclasses. A user wrote `acceptance.k=5` and `model=tiny`, not
`decoders.lantern.spec.acceptance.kwargs.k`, and is told so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_SHOWN = 8  # differences listed in an error
LONGEST = 60  # characters of a value
ASKED = ("in the folder", "asked for")
MACHINES = ("there", "here")
GROUPS = ("model", "backend", "prompts")  # chosen by name: another name explains all below it
UNSET = object()
Difference = tuple[str, Any, Any]  # setting, its value on one side and on the other


def differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], sides: tuple[str, str] = ASKED
) -> str:
    """`latency.prompts: 54 in the folder, 20 asked for; ...`, at most `MAX_SHOWN` of them with a
    count of the rest; "" where nothing differs. sides: what the two are called.

    Both are plain containers: two `StudyConfig.measured()`, or any other two mappings. A setting of
    several decoders that differs in the same way is listed once, with their names.
    """
    old, new = dict(there), json.loads(json.dumps(wanted))
    found = _chosen(old, new)
    olds, news = (_decoders(side.pop("decoders", None)) for side in (old, new))
    before, after = _flat(old), _flat(new)
    found += [(k, before.get(k, UNSET), after.get(k, UNSET)) for k in _changed(before, after)]
    found += _parts(olds, news)
    lines = [f"{k}: {_value(a)} {sides[0]}, {_value(b)} {sides[1]}" for k, a, b in found]
    lines += _lineup(olds, news, sides)
    lines.sort(key=lambda line: not line.startswith(("name:", "decoders:")))  # the most telling
    more = len(lines) - MAX_SHOWN
    return "; ".join(lines[:MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _chosen(old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """Groups of another name, taken out of both."""
    found: list[Difference] = []
    for group in GROUPS:
        one, other = (side.get(group, {}).get("name", UNSET) for side in (old, new))
        if one != other:
            found.append((group, one, other))
            for side in (old, new):
                side.pop(group, None)
    return found


def _decoders(listed: Any) -> dict[str, dict[str, Any]]:
    """Entries by name -> their settings by the names that a command line has for them."""
    found = {}
    for entry in listed or []:
        plain = {k: v for k, v in entry.items() if k not in ("name", "spec")}
        parts = {k: v for k, v in entry.get("spec", {}).items() if k != "name"}
        found[str(entry["name"])] = _flat({**plain, **parts})
    return found


def _lineup(old: Mapping[str, Any], new: Mapping[str, Any], sides: tuple[str, str]) -> list[str]:
    """Decoders that only one side has, or their order."""
    lines = []
    for mine, theirs, where in ((old, new, sides[0]), (new, old, sides[1])):
        names = [name for name in mine if name not in theirs]
        if names:
            lines.append(f"decoders: {_short(', '.join(names))} {where} only")
    shared = [[n for n in side if n in old and n in new] for side in (old, new)]
    if shared[0] != shared[1]:
        lines.append(f"decoders: in another order, {_short(', '.join(shared[0]))} {sides[0]}")
    return lines


def _parts(
    old: Mapping[str, dict[str, Any]], new: Mapping[str, dict[str, Any]]
) -> list[Difference]:
    """Settings of the decoders that both sides have, as `acceptance.k (lantern, lantern_pp)`."""
    found: dict[str, list[str]] = {}
    values: dict[str, Difference] = {}
    for name in (n for n in old if n in new):
        one, other = old[name], new[name]
        for key in _changed(one, other):
            changed = (key, one.get(key, UNSET), other.get(key, UNSET))
            found.setdefault(repr(changed), []).append(name)
            values[repr(changed)] = changed
    return [
        (f"{values[same][0]} ({_short(', '.join(names))})", *values[same][1:])
        for same, names in found.items()
    ]


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [k for k in {**old, **new} if old.get(k, UNSET) != new.get(k, UNSET)]


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted names; `target` and `kwargs` of what is imported are
    `_target_` and its keywords, as in YAML."""
    out: dict[str, Any] = {}
    made = "target" in value and "kwargs" in value
    for key, inner in value.items():
        if made and key == "kwargs":
            out |= _flat(inner, above)
        elif isinstance(inner, Mapping):
            out |= _flat(inner, f"{above}{key}.")
        else:
            out[above + ("_target_" if made and key == "target" else str(key))] = inner
    return out


def _value(value: Any) -> str:
    """As YAML has it."""
    if value is UNSET:
        return "not set"
    return _short(value if isinstance(value, str) and value else json.dumps(value))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + " …"
