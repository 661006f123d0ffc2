"""judged.json: the verdicts and quality figures of a run, and of what code and images they are.

Why: a finished study that is run again with metric=none or gate=false must not lose what was judged
before, nor keep what was judged of other images or other code. So each figure lies beside a digest
of what it is of, and counts as long as that is the same.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import digest
from bench.data.files import write_text
from bench.data.scores import PreferenceRow, Scores
from decoders.kinds import built, fitted

log = logging.getLogger(__name__)
FILE = "judged.json"
MADE = ("sources", "weights_hash", "config_hash", "versions", "cpu", "gpu")
Figures = tuple[Scores, PreferenceRow | None]


def today(verdict: str) -> str:
    """A verdict, or its cell of a table, in today's words: records of earlier versions say
    `bounded`, and `violates` of whatever passed a declared bound."""
    kept = "output bound holds" in verdict  # no output bound was exceeded: no claim is broken
    for old, new in (("bounded", "relaxed"), ("violates", "relaxed" if kept else "broken")):
        if verdict.startswith(old):
            return new + verdict.removeprefix(old)
    return verdict


class Kept:
    """What was judged when the run was last finished, and what is to be kept of this time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.before, self.now = _read(self.path), dict[str, Any]()

    def figures(self, label: str, of: str, made: Figures | None = None) -> Figures | None:
        """The figures of a decoder's images: those made now, else what is known of the same."""
        name = f"figures of {label}"
        if made is not None:
            plain = None if made[1] is None else dataclasses.asdict(made[1])
            value = {"scores": dataclasses.asdict(made[0]), "preference": plain}
            self.now[name] = {"of": of, "value": value}
            return made
        found = self._recall(name, of)
        return None if found is None else _figures(found)

    def verdict(self, decoder: str, of: str, made: Sequence[str] = ()) -> list[str] | None:
        """The words of the verdict on a decoder's code: those made now, else what is known."""
        name = f"verdict on {decoder}"
        if made:
            self.now[name] = {"of": of, "value": [*made]}
        found: list[str] | None = self._recall(name, of)
        return None if found is None else [today(found[0]), found[1], today(found[2]), *found[3:]]

    def _recall(self, name: str, of: str) -> Any:
        """What was judged, which is then kept once more; None where it is of something else."""
        found = self.now.get(name, self.before.get(name))
        if found is None or found["of"] != of:
            return None
        self.now[name] = found
        return found["value"]

    def save(self) -> None:
        write_text(self.path, json.dumps(self.now, indent=1, sort_keys=True))


def _figures(value: Any) -> Figures:
    """What a file says of images; figures that it has as NaN are unknown. Raises KindError, and
    what Python raises of a value of another kind."""
    known = {k: v for k, v in value["scores"].items() if v == v}
    preference = value.get("preference")
    one = None if preference is None else built(PreferenceRow, preference, "preference")
    return built(Scores, known, "scores"), one


def judged(folder: Path) -> dict[str, Any]:
    """Decoder -> what was judged of its pictures: {"of": their digest, "value": the figures}."""
    found, mark = _read(folder / FILE), "figures of "
    return {key.removeprefix(mark): one for key, one in found.items() if key.startswith(mark)}


def code_digest(rows: pd.DataFrame) -> str:
    """Of the code, weights and machine that made the rows of a decoder."""
    return digest([str(rows.iloc[0][column]) for column in MADE])


def images_digest(rows: pd.DataFrame) -> str:
    """Of pictures and the prompts that they were drawn from."""
    columns = ["prompt_id", "prompt_hash", "category", "image_hash"]
    return digest(rows[columns].to_numpy().tolist())


def _read(path: Path) -> dict[str, Any]:
    """{} where there is no such file, or none that can be read: that is judged again."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
        for name, entry in found.items():
            value, words = entry["value"], name.startswith("verdict on ")
            fitted(f"{name}: of", entry["of"], str)
            fitted(name, value, list[str]) if words else _figures(value)
        return dict(found)
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError):
        pass
    log.warning("%s is damaged: what was judged before is not known", path)
    return {}
