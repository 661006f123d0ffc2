"""A page for each prompt: what every decoder made of it under the same noise, and how.

For each decoder: its picture, the map of how each code came to be, the map of codes that are not
AR's, the codes that each forward committed along the image, and where its seconds went. Each page
is one file without any script, <report>/prompts/<prompt index>.html.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from bench.report.code_map import COLORS as KIND_COLORS
from bench.report.code_map import KINDS, MEANINGS, kind_map, kinds_of
from bench.report.images import image_row
from bench.report.model import Entry, Run, as_text
from bench.report.plots.latency import COLORS as PHASE_COLORS
from bench.report.plots.latency import NAMES, phase_seconds

PAGES = 200  # a run of 30,000 images has no reader for as many pages
LARGE = 120_000  # bytes from which a picture is embedded as WebP
SAME, DIFFERENT = (225, 225, 225), (170, 30, 45)  # colours of codes that are AR's, and are not
KEY = [(f"rgb{color}", name, text)
       for color, name, text in zip(KIND_COLORS, KINDS, MEANINGS, strict=True)]  # fmt: skip
PHASE_KEY = [(PHASE_COLORS[name], NAMES[name]) for name in NAMES]


@dataclass(frozen=True)
class Strip:
    """Codes that each forward committed, left to right along the raster. path: of an SVG whose
    user units are codes, both ways; length and height: its extent."""

    path: str
    length: int
    height: int


@dataclass(frozen=True)
class Card:
    """One decoder's image of the prompt. Pictures and maps are data URIs, "" where there is none;
    missing: why there is no picture; seconds: (phase, colour, share of the section's longest, text)
    of what was timed."""

    name: str
    verdict: str
    facts: str
    error: str
    picture: str
    missing: str
    kinds: str
    differs: str
    difference: str
    strip: Strip | None
    seconds: list[tuple[str, str, float, str]]


@dataclass(frozen=True)
class PromptPage:
    """A prompt and its cards, a group a section of the run."""

    index: int
    prompt: str
    groups: list[tuple[str, list[Card]]]
    facts: dict[str, str]  # in the page's table of prompts

    @property
    def address(self) -> str:
        """Of the page, relative to the report's."""
        return f"prompts/{self.index}.html"


def chosen(run: Run, count: int = PAGES) -> list[tuple[int, str]]:
    """(prompt_index, prompt) of up to `count` prompts: first those with the most pictures."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    if rows.empty:
        return []
    kept = rows["image"].map(as_text) != ""
    have = rows.assign(kept=kept).groupby("prompt_index").agg({"kept": "sum", "prompt": "first"})
    order = sorted(have.index, key=lambda index: (-have["kept"][index], index))[:count]
    return [(int(index), as_text(have["prompt"][index])) for index in sorted(order)]


def prompt_pages(run: Run) -> Iterator[PromptPage]:
    """The pages of the chosen prompts, one after the other."""
    rows = {id(e): dict([*e.records.groupby("prompt_index")]) for e in run.entries}
    for index, prompt in chosen(run):
        groups, facts = [], dict[str, str]()
        for section in run.sections:
            own = [
                replace(e, records=rows[id(e)].get(index, e.records.iloc[:0]))
                for e in section.decoders
            ]
            baseline = next((e for e in own if e.name == getattr(section.baseline, "name", "")), None)
            groups.append((section.title, _cards(run, own, baseline, index)))
            facts = facts or _facts(own, baseline)
        yield PromptPage(index, prompt, groups, facts)


def _facts(entries: list[Entry], baseline: Entry | None) -> dict[str, str]:
    """Of a prompt, in its line of the report's page."""
    seconds = {e.name: _total(e) for e in entries}
    timed = {name: value for name, value in seconds.items() if math.isfinite(value)}
    own = math.nan if baseline is None else seconds[baseline.name]
    fastest = min(timed, key=lambda name: timed[name]) if timed else ""
    pictures = sum(bool((e.ok["image"].map(as_text) != "").any()) for e in entries)
    return {
        "pictures": str(pictures),
        "AR s": f"{own:.3f}" if math.isfinite(own) else "—",
        "fastest": fastest or "—",
        "its speed-up": f"{own / timed[fastest]:.2f}" if fastest and math.isfinite(own) else "—",
    }


def _total(entry: Entry) -> float:
    """Seconds of an entry's first timed image of the prompt; NaN where there is none."""
    rows = entry.latency_rows()
    return float(rows["seconds_total"].iloc[0]) if len(rows) else math.nan


def _cards(run: Run, entries: list[Entry], baseline: Entry | None, index: int) -> list[Card]:
    """A card each, with bars of seconds on one scale."""
    reference = None if baseline is None else image_row(baseline, index)
    phases = [phase_seconds(replace(e, records=e.latency_rows().iloc[:1])) for e in entries]
    longest = max((sum(one.values()) for one in phases), default=0.0)
    return [
        _card(run, entry, image_row(entry, index), reference, _bars(seconds, longest))
        for entry, seconds in zip(entries, phases, strict=True)
    ]


def _bars(seconds: dict[str, float], longest: float) -> list[tuple[str, str, float, str]]:
    return [
        (NAMES[name], PHASE_COLORS[name], 100 * value / longest, f"{value:.3f} s")
        for name, value in seconds.items()
        if longest > 0 and value > 0
    ]


def _card(
    run: Run,
    entry: Entry,
    row: pd.Series | None,
    reference: pd.Series | None,
    seconds: list[tuple[str, str, float, str]],
) -> Card:
    verdict = entry.text("exactness")
    if row is None:
        empty = Card(entry.name, verdict, "", "", "", "not run", "", "", "", None, seconds)
        broken = [as_text(error) for error in entry.records["error"] if as_text(error)]
        return replace(empty, error=broken[0], missing="failed") if broken else empty
    picture, missing = _picture(run, row)
    kinds, codes, steps = kinds_of(row), _whole(row, "codes"), _whole(row, "step")
    facts = f"seed {row['seed']}, {row['nfe']} forwards, {row['mal']:.2f} codes per forward"
    total = _total(entry)
    if math.isfinite(total):
        facts += f", {total:.3f} s"
    differs, difference = _differs(codes, row, reference, entry.role.value == "baseline")
    return Card(
        entry.name, verdict, facts, "", picture, missing,
        _png(kind_map(kinds)) if len(kinds) else "", differs, difference,
        strip_of(steps) if len(steps) else None, seconds,
    )  # fmt: skip


def _whole(row: pd.Series, column: str) -> NDArray[np.int64]:
    """A list column of a row; empty where nothing was recorded."""
    return np.asarray([] if row[column] is None else row[column], dtype=np.int64)


def _picture(run: Run, row: pd.Series) -> tuple[str, str]:
    """The kept picture as a data URI, or "" and why there is none."""
    path = run.folder / as_text(row["image"])
    if not as_text(row["image"]) or not path.is_file():
        return "", "image not kept"
    data, kind = path.read_bytes(), "png"
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            if len(data) > LARGE:
                smaller = io.BytesIO()
                image.convert("RGB").save(smaller, format="WEBP", quality=90)
                data, kind = smaller.getvalue(), "webp"
    except (OSError, SyntaxError):  # what PIL raises on a damaged file
        return "", "image damaged"
    return _uri(data, kind), ""


def _differs(
    codes: NDArray[np.int64], row: pd.Series, reference: pd.Series | None, is_reference: bool
) -> tuple[str, str]:
    """The map of codes that are not AR's of the same prompt and seed, and what it shows in words;
    no map where there is nothing to compare."""
    if is_reference:
        return "", ""
    theirs = np.empty(0) if reference is None else _whole(reference, "codes")
    if reference is None or len(theirs) != len(codes) or not len(codes):
        return "", "no codes of AR to compare with"
    if reference["seed"] != row["seed"]:
        return "", "AR has no image of this seed"
    other = codes != theirs
    count = int(other.sum())
    if not count:
        return _png(_raster(other)), "every code is AR's"
    words = f"{count} of {len(codes)} codes are not AR's; the first is code {int(other.argmax())}"
    return _png(_raster(other)), words


def _raster(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """[L] -> [H, W, 3] colours, one pixel a code; cells past L are white."""
    side = math.ceil(math.sqrt(len(flags)))
    cells = np.full((side * side, 3), 255, dtype=np.uint8)
    cells[: len(flags)] = np.where(flags[:, None], DIFFERENT, SAME)  # [L, 3]
    return cells.reshape(side, side, 3)


def strip_of(steps: NDArray[np.int64]) -> Strip:
    """[L] the forward that committed each code -> one outline: above each code, how many codes its
    forward committed."""
    counts = np.bincount(steps)[steps]  # [L]
    height = int(counts.max())
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
    path = f"M0 {height}"
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        path += f"V{height - int(counts[start])}H{end}"
    return Strip(f"{path}V{height}Z", len(counts), height)


def _png(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return _uri(file.getvalue(), "png")


def _uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
