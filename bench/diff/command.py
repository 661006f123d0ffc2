"""`python -m bench diff A B`: two runs decoder by decoder, or two decoders of one run.

Exit status 1 where something of B is slower or worse than A, so that CI can stop on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import say, table
from bench.errors import ConfigError, unknown
from bench.os_errors import ready_file

if TYPE_CHECKING:
    from bench.diff.paired import Finding
    from bench.diff.side import Side

KEYS = ("decoders", "level", "out")
USAGE = "write `diff A B` for two run folders, or `diff A decoders=x,y` for two decoders of one"


def cmd_diff(words: Sequence[str]) -> int:
    """Prints every figure with its verdict; out=FILE also writes JSON. Raises ConfigError,
    ReportError."""
    from bench.diff.paired import findings, worse
    from bench.diff.side import read_sides
    from bench.records.schema import write_atomically

    folders, given = _words(words)
    level = _level(given.get("level", "0.05"))
    out = Path(given["out"]) if "out" in given else None
    if out:
        ready_file(out)
    runs = [read_sides(folder) for folder in folders]
    pairs, notes = _chosen(folders, runs, given.get("decoders"))
    found = findings(pairs, level)
    notes += _failures(pairs)
    say(rendered(found, notes))
    if out:
        text = json.dumps({"findings": [asdict(f) for f in found], "notes": notes}, indent=1)
        write_atomically(out, lambda file: file.write(text.encode()))
    return int(worse(found))


def rendered(found: Sequence[Finding], notes: Sequence[str]) -> str:
    """The table in the terminal, and what could not be compared."""
    rows = []
    for f in found:
        name = f.a if f.a == f.b else f"{f.a} -> {f.b}"
        ratio = f.figure.startswith(("speed", "seconds"))
        least = f"{f.least:.1%}" if ratio else f"{f.least:.2f}"
        verdict = f.verdict if f.verdict != "not told apart" else f"{f.verdict} (below {least})"
        value = f"{f.value:.3f} [{f.lo:.3f}, {f.hi:.3f}]"
        p = "" if f.p is None else f"{f.p:.3f}" if f.p >= 0.001 else "< 0.001"
        rows.append([name, f.figure, value, str(f.pairs or ""), p, verdict])
    heads = ["decoder", "figure", "B / A, or B - A", "images", "p", "B is"]
    lines = [table(heads, rows)] if rows else ["nothing of the two can be compared"]
    return "\n".join([*lines, *notes])


def _words(words: Sequence[str]) -> tuple[list[Path], dict[str, str]]:
    folders = [Path(word) for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    for key in given:
        if key not in KEYS:
            raise ConfigError(unknown("setting of diff", key, KEYS))
    wanted = 1 if "decoders" in given else 2
    if len(folders) != wanted:
        raise ConfigError(f"expected {wanted} run folders, found {len(folders)}; {USAGE}")
    return folders, given


def _level(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"level must be a number, found {text!r}") from error
    if not (math.isfinite(value) and 0 < value < 1):
        raise ConfigError(f"level lies between 0 and 1, found {text}; 0.05 is 5 %")
    return value


def _chosen(
    folders: Sequence[Path], runs: Sequence[dict[str, Side]], names: str | None
) -> tuple[list[tuple[Side, Side]], list[str]]:
    if names is None:
        a, b = runs
        notes = [
            f"only in {folder}: {', '.join(sorted(mine.keys() - other.keys()))}"
            for folder, mine, other in ((folders[0], a, b), (folders[1], b, a))
            if mine.keys() - other.keys()
        ]
        return [(a[name], b[name]) for name in a if name in b], notes
    asked = [name.strip() for name in names.strip("[]").split(",")]
    if len(asked) != 2:
        raise ConfigError(f"decoders= takes two names, found {len(asked)}: {names!r}")
    for name in asked:
        if name not in runs[0]:
            raise ConfigError(unknown(f"decoder of {folders[0]}", name, sorted(runs[0])))
    return [(runs[0][asked[0]], runs[0][asked[1]])], []


def _failures(pairs: Sequence[tuple[Side, Side]]) -> list[str]:
    return [
        f"{side.decoder} in {side.run}: {side.failed} of {len(side.rows)} rows failed"
        for pair in pairs
        for side in pair
        if side.failed
    ]
