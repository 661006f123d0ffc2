"""A page for each prompt: what every decoder made of it under the same noise, and how.

For each decoder: its picture, the map of how each code came to be, and the map of codes that are
not AR's. Each page is one file without any script, <report>/prompts/<prompt index>.html.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.records.run_data import Entry, Role, RunData, as_text
from bench.report.sheets import (
    KINDS,
    data_uri,
    kind_map,
    kinds_of,
    picture,
    pictured,
    raster,
    shown_rows,
)

PAGES = 200  # a run of 30,000 images has no reader for as many pages
LARGE = 120_000  # bytes from which a picture is embedded as WebP
SAME, OTHER = (225, 225, 225), (170, 30, 45)  # colours of codes that are AR's and that are not
KEY = [(f"rgb{color}", name, text) for name, (color, text) in KINDS.items()]

Line = Mapping[str, Any]  # a row of the records


@dataclass(frozen=True)
class Shown:
    """What is shown of a decoder, by prompt index: the row of its image, and its error where it
    has none."""

    entry: Entry
    images: dict[int, Line]
    errors: dict[int, str]

    @property
    def baseline(self) -> bool:
        return self.entry.role is Role.BASELINE


@dataclass(frozen=True)
class Card:
    """One decoder's image of the prompt. Pictures and maps are data URIs, "" where there is none;
    missing: why there is no picture."""

    name: str
    verdict: str
    missing: str
    error: str = ""
    facts: str = ""
    picture: str = ""
    kinds: str = ""
    differs: str = ""
    difference: str = ""


@dataclass(frozen=True)
class PromptPage:
    """A prompt and its cards, a group a section of the run."""

    index: int
    prompt: str
    groups: list[tuple[str, list[Card]]]

    @property
    def address(self) -> str:
        """Of the page, relative to the report's."""
        return f"prompts/{self.index}.html"


def chosen(run: RunData) -> list[tuple[int, str]]:
    """(prompt_index, prompt) of up to `PAGES` prompts: first those with the most pictures. None
    where neither pictures nor traces were kept, as in a published run: there is nothing to show."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    traced = any(len(kinds_of({"kind": kind})) for kind in rows["kind"])
    return pictured(run, PAGES, all_prompts=True) if traced or pictured(run, 1) else []


def prompt_pages(run: RunData, prompts: Sequence[tuple[int, str]]) -> Iterator[PromptPage]:
    """The pages of the chosen prompts, one after the other."""
    numbers = [index for index, _ in prompts]
    sections = [(s.title, [_shown(e, numbers) for e in s.decoders]) for s in run.sections]
    for index, prompt in prompts:
        yield PromptPage(index, prompt, [(t, _cards(run, shown, index)) for t, shown in sections])


def _shown(entry: Entry, prompts: list[int]) -> Shown:
    """Read once for all prompts: looking a prompt up in a table takes milliseconds."""
    records = entry.records[entry.records["prompt_index"].isin(prompts)]
    failed = records[records["status"] != "ok"].drop_duplicates("prompt_index")
    columns = ["seed", "nfe", "mal", "image", "kind", "codes"]
    images = shown_rows(records[records["status"] == "ok"]).set_index("prompt_index")[columns]
    return Shown(
        entry,
        cast(dict[int, Line], images.to_dict("index")),
        {int(i): as_text(error) for i, error in failed[["prompt_index", "error"]].to_numpy()},
    )


def _cards(run: RunData, shown: list[Shown], index: int) -> list[Card]:
    reference = next((one.images.get(index) for one in shown if one.baseline), None)
    return [_card(run, one, index, reference) for one in shown]


def _card(run: RunData, shown: Shown, index: int, reference: Line | None) -> Card:
    name, verdict = shown.entry.name, shown.entry.word
    row = shown.images.get(index)
    if row is None:
        error = shown.errors.get(index, "")
        return Card(name, verdict, "failed" if error else "not run", error)
    kinds, codes = kinds_of(row), _codes(row)
    facts = f"seed {row['seed']}, {row['nfe']} forwards, {row['mal']:.2f} codes per forward"
    embedded, missing = _picture(run, row)
    same = ("", "the baseline") if shown.baseline else _differs(codes, row, reference)
    return Card(
        name,
        verdict,
        missing,
        facts=facts,
        picture=embedded,
        kinds=_png(kind_map(kinds)) if len(kinds) else "",
        differs=same[0],
        difference=same[1],
    )


def _codes(row: Line) -> NDArray[np.int64]:
    """Empty where none were recorded."""
    return np.asarray([] if row["codes"] is None else row["codes"], dtype=np.int64)


def _picture(run: RunData, row: Line) -> tuple[str, str]:
    """The kept picture as a data URI, or "" and why there is none."""
    found = picture(run, row)
    if isinstance(found, str):
        return "", found
    data = (run.folder / row["image"]).read_bytes()
    if len(data) <= LARGE:
        return data_uri(data, "png"), ""
    smaller = io.BytesIO()
    found.save(smaller, format="WEBP", quality=90)
    return data_uri(smaller.getvalue(), "webp"), ""


def _differs(codes: NDArray[np.int64], row: Line, reference: Line | None) -> tuple[str, str]:
    """The map of codes that are not AR's of the same prompt and seed, and what it shows in words;
    no map where there is nothing to compare."""
    theirs = np.empty(0) if reference is None else _codes(reference)
    if reference is None or len(theirs) != len(codes) or not len(codes):
        return "", "no codes of AR to compare with"
    if reference["seed"] != row["seed"]:
        return "", "AR has no image of this seed"
    other = codes != theirs
    count, words = int(other.sum()), "every code is AR's"
    if count:
        words = f"{count} of {len(codes)} codes not AR's; first: code {int(other.argmax())}"
    return _png(raster(np.where(other[:, None], OTHER, SAME))), words


def _png(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return data_uri(file.getvalue(), "png")
