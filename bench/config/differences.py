"""What differs between two configurations or machines, in the words of a command line.

Why: a folder keeps the resolved configuration (`StudyConfig.measured`), whose names are those of
the dataclasses. A user wrote `acceptance.k=5` and `model=tiny`, not
`decoders.lantern.spec.acceptance.kwargs.k`, and is told so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_SHOWN = 8  # differences listed in an error
LONGEST = 60  # characters of a value
ASKED = ("in the folder", "asked for")
MACHINES = ("there", "here")
GROUPS = ("model", "backend", "prompts")  # chosen by name: another name explains all below it
UNSET = object()


def differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], sides: tuple[str, str] = ASKED
) -> str:
    """`latency.prompts: 54 in the folder, 20 asked for; ...`, at most `MAX_SHOWN` of them with a
    count of the rest; "" where nothing differs. sides: what the two are called.

    Both are plain containers: two `StudyConfig.measured()`, or any other two mappings. A setting of
    several decoders that differs in the same way is listed once, with their names.
    """
    old, new = dict(there), json.loads(json.dumps(wanted))
    for group in GROUPS:
        names = [side.get(group, {}).get("name", UNSET) for side in (old, new)]
        if names[0] != names[1]:
            old[group], new[group] = names
    lineups = [[str(e["name"]) for e in side.get("decoders") or []] for side in (old, new)]
    olds, news = _settings(old), _settings(new)
    found: dict[tuple[str, str], list[str]] = {}  # what is said -> the decoders that it is said of
    for owner, key in {**olds, **news}:
        one, other = (side.get((owner, key), UNSET) for side in (olds, news))
        if one != other and all(owner in ("", *names) for names in lineups):
            says = f"{_value(one)} {sides[0]}, {_value(other)} {sides[1]}"
            found.setdefault((key, says), []).append(owner)
    lines = [
        key + (f" ({_short(', '.join(owners))})" if any(owners) else "") + f": {says}"
        for (key, says), owners in found.items()
    ]
    lines += _lineup(lineups[0], lineups[1], sides)
    lines.sort(key=lambda line: not line.startswith(("name:", "decoders:")))  # the most telling
    more = len(lines) - MAX_SHOWN
    return "; ".join(lines[:MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _settings(config: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """(decoder or "", setting by the name that a command line has for it) -> value."""
    found = {("", key): value for key, value in _flat(config).items() if key != "decoders"}
    for entry in config.get("decoders") or []:
        found |= {(str(entry["name"]), key): value for key, value in settings_of(entry).items()}
    return found


def settings_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a decoder of study.json, by the names that a command line has for them."""
    parts = {**entry, **entry.get("spec", {})}
    return _flat({key: value for key, value in parts.items() if key not in ("name", "spec")})


def series(decoders: Sequence[Mapping[str, Any]]) -> dict[str, list[list[tuple[float, str]]]]:
    """What one number changes: setting -> lines of (its value, decoder), by value. The decoders of
    study.json on a line are equal in all else; settings with a single value are left out."""
    settings = {str(e["name"]): settings_of(e) for e in decoders}
    found: dict[str, list[list[tuple[float, str]]]] = {}
    for key in dict.fromkeys(key for own in settings.values() for key in own):
        lines: dict[str, list[tuple[float, str]]] = {}
        for name, own in settings.items():
            if isinstance(own.get(key), int | float) and not isinstance(own[key], bool):
                rest = json.dumps({k: v for k, v in own.items() if k != key}, sort_keys=True)
                lines.setdefault(rest, []).append((own[key], name))
        several = [sorted(line) for line in lines.values() if len({v for v, _ in line}) > 1]
        found |= {key: several} if several else {}
    return found


def _lineup(old: Sequence[str], new: Sequence[str], sides: tuple[str, str]) -> list[str]:
    """Decoders that only one side has, or their order."""
    lines = []
    for mine, theirs, where in ((old, new, sides[0]), (new, old, sides[1])):
        names = [name for name in mine if name not in theirs]
        if names:
            lines.append(f"decoders: {_short(', '.join(names))} {where} only")
    shared = [[name for name in side if name in old and name in new] for side in (old, new)]
    if shared[0] != shared[1]:
        lines.append(f"decoders: in another order, {_short(', '.join(shared[0]))} {sides[0]}")
    return lines


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
