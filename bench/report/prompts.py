"""A page for each prompt: what every decoder made of it under the same noise, and how.

For each decoder: its picture, the map of how each code came to be, and the map of codes that are
not AR's. Each page is one file without any script, <report>/prompts/<prompt index>.html.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from PIL import Image

from bench.records.run_data import Entry, Role, RunData, as_text
from bench.report.sheets import data_uri, display_rows, illustrated_prompts, picture

PAGES = 200  # a run of 30,000 images has no reader for as many pages
LARGE = 120_000  # bytes from which a picture is embedded as WebP
SAME, OTHER = (225, 225, 225), (170, 30, 45)  # colours of codes that are AR's and that are not
# How a code came to be, in the order of `decoders.api.CodeKind`: colour and meaning. Light grey,
# then four hues that colour-blind readers tell apart (Okabe and Ito).
KINDS: dict[str, tuple[tuple[int, int, int], str]] = {
    "target": ((190, 190, 190), "sampled from the target"),
    "draft": ((0, 114, 178), "exact rule accepts it too"),
    "relaxed": ((230, 159, 0), "only the relaxed rule accepts it"),
    "corrected": ((170, 30, 45), "after a rejection"),
    "bonus": ((130, 210, 190), "after a whole path"),
}
KEY = [(f"rgb{color}", name, text) for name, (color, text) in KINDS.items()]
COLUMNS = ["status", "error", "seed", "nfe", "mal", "image", "kind", "codes"]

Line = Mapping[str, Any]  # these columns of a record


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
    """A prompt and its cards, a group per section of the run."""

    index: int
    prompt: str
    groups: list[tuple[str, list[Card]]]

    @property
    def address(self) -> str:
        """The page's path, relative to the report's."""
        return f"prompts/{self.index}.html"


def prompts_with_page(run: RunData) -> list[tuple[int, str]]:
    """(prompt_index, prompt) of up to `PAGES` prompts: first those with the most pictures. None
    where neither pictures nor traces were kept, as in a published run: there is nothing to show."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    traced = any(len(kinds) for kinds in rows["kind"])
    if not traced and not illustrated_prompts(run, 1):
        return []
    return illustrated_prompts(run, PAGES, every=True)


def prompt_pages(run: RunData, prompts: Sequence[tuple[int, str]]) -> Iterator[PromptPage]:
    """The pages of the chosen prompts, one after the other."""
    numbers = [index for index, _ in prompts]
    lines = {e.name: _lines(e, numbers) for section in run.sections for e in section.decoders}
    for index, prompt in prompts:
        groups = []
        for section in run.sections:
            base = section.baseline
            ar = lines[base.name].get(index) if base else None
            cards = [_card(run, e, lines[e.name].get(index), ar) for e in section.decoders]
            groups.append((section.title, cards))
        yield PromptPage(index, prompt, groups)


def _lines(entry: Entry, prompts: Sequence[int]) -> dict[int, Line]:
    """By prompt: the image that is shown of a decoder, else a failed one. Read once for all
    prompts, as looking one up in a table takes milliseconds."""
    records = entry.records[entry.records["prompt_index"].isin(prompts)]
    rows = pd.concat([display_rows(records[records["status"] == "ok"]), records])
    lines = rows.drop_duplicates("prompt_index").set_index("prompt_index")[COLUMNS]
    return cast(dict[int, Line], lines.to_dict("index"))


def _card(run: RunData, entry: Entry, line: Line | None, ar: Line | None) -> Card:
    if line is None:
        return Card(entry.name, entry.word, "not run")
    if line["status"] != "ok":
        return Card(entry.name, entry.word, "failed", as_text(line["error"]))
    kinds, (embedded, missing) = np.asarray(line["kind"], np.uint8), _picture(run, line)
    differs, difference = _differs(line, ar)
    if entry.role is Role.BASELINE:
        differs, difference = "", "the baseline"
    return Card(
        entry.name,
        entry.word,
        missing,
        facts=f"seed {line['seed']}, {line['nfe']} forwards, {line['mal']:.2f} codes per forward",
        picture=embedded,
        kinds=_png(kind_map(kinds)) if len(kinds) else "",
        differs=differs,
        difference=difference,
    )


def _picture(run: RunData, line: Line) -> tuple[str, str]:
    """The kept picture as a data URI, or "" and why there is none."""
    image = picture(run, line)
    if isinstance(image, str):
        return "", image
    data = (run.folder / line["image"]).read_bytes()
    if len(data) <= LARGE:
        return data_uri(data, "png"), ""
    smaller = io.BytesIO()
    image.save(smaller, format="WEBP", quality=90)
    return data_uri(smaller.getvalue(), "webp"), ""


def _differs(line: Line, ar: Line | None) -> tuple[str, str]:
    """The map of codes that are not AR's of the same prompt and seed, and what it shows in words;
    no map where there is nothing to compare."""
    sides = (line, ar if ar is not None and ar["status"] == "ok" else {"codes": None})
    mine, theirs = (np.asarray([] if s["codes"] is None else s["codes"], int) for s in sides)
    if ar is None or len(theirs) != len(mine) or not len(mine):
        return "", "no codes of AR to compare with"
    if ar["seed"] != line["seed"]:
        return "", "AR has no image of this seed"
    other = mine != theirs
    count, words = int(other.sum()), "every code is AR's"
    if count:
        words = f"{count} of {len(mine)} codes not AR's; first: code {int(other.argmax())}"
    return _png(raster(np.where(other[:, None], OTHER, SAME))), words


def kind_map(kinds: np.ndarray) -> np.ndarray:
    """[L] CodeKind values -> [H, W, 3] colours, see `raster`."""
    return raster(np.array([color for color, _ in KINDS.values()])[kinds])


def raster(colors: np.ndarray) -> np.ndarray:
    """[L, 3] colours -> [H, W, 3] in raster order, one pixel per code; cells past L are white."""
    side = math.ceil(math.sqrt(len(colors)))
    cells = np.full((side * side, 3), 255, np.uint8)
    cells[: len(colors)] = colors
    return cells.reshape(side, side, 3)  # [H, W, 3]


def _png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return data_uri(file.getvalue(), "png")
