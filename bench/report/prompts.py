"""Makes a page for each prompt, with every decoder's image and how it came to be.

For each decoder: its picture, the map of how each code came to be, and the map of codes that are
not AR's. Each page is one file without any script, <report>/prompts/<prompt index>.html. The run's
page shows the pictures of the first few.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from PIL import Image

from bench.analyse.run_data import Entry, Role, RunData, as_text

PAGES = 200  # a run of 30,000 images has no reader for as many pages
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
COLORS = np.array([color for color, _ in KINDS.values()])
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
    facts: str = ""
    picture: str = ""
    kinds: str = ""
    differs: str = ""
    difference: str = ""
    error: str = ""


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

    @property
    def pictures(self) -> int:
        """How many decoders have a picture of it."""
        return sum(bool(card.picture) for _, cards in self.groups for card in cards)


def prompts_with_page(run: RunData) -> list[tuple[int, str]]:
    """Lists (prompt_index, prompt on one line) of up to `PAGES` prompts; [] where neither pictures
    nor traces were kept, as in a published run."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    pictures = any(is_kept(run, image) for image in rows["image"])
    if not pictures and not any(len(kinds) for kinds in rows["kind"]):
        return []
    texts = rows.groupby("prompt_index")["prompt"].first()[:PAGES]
    lines = (" ".join(as_text(text).split()) for text in texts)
    return list(zip(map(int, texts.index), lines, strict=True))


def prompt_pages(run: RunData, prompts: Sequence[tuple[int, str]]) -> Iterator[PromptPage]:
    """Makes the pages of the chosen prompts, one after the other."""
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
    """Chooses the image of a decoder to show by prompt: quality before latency, lowest seed first,
    failed last. Done once for all prompts, as looking one up in a table takes milliseconds."""
    rows = entry.records[entry.records["prompt_index"].isin(prompts)]
    rows = rows.assign(failed=rows["status"] != "ok", timed=rows["protocol"] != "quality")
    rows = rows.sort_values(["failed", "timed", "seed"]).drop_duplicates("prompt_index")
    return cast(dict[int, Line], rows.set_index("prompt_index")[COLUMNS].to_dict("index"))


def _card(run: RunData, entry: Entry, line: Line | None, ar: Line | None) -> Card:
    if line is None:
        return Card(entry.name, entry.word, "not run")
    if line["status"] != "ok":
        return Card(entry.name, entry.word, "failed", error=as_text(line["error"]))
    picture, missing = _picture(run, line)
    facts = f"seed {line['seed']}, {line['nfe']} forwards, {line['mal']:.2f} codes per forward"
    kinds = _code_map(COLORS[np.asarray(line["kind"], np.uint8)]) if len(line["kind"]) else ""
    baseline = entry.role is Role.BASELINE
    differs, difference = ("", "the baseline") if baseline else _difference_map(line, ar)
    return Card(entry.name, entry.word, missing, facts, picture, kinds, differs, difference)


def is_kept(run: RunData, image: object) -> bool:
    """Whether a row's picture lies in the run's folder; `image`: its path there, as in the row."""
    return as_text(image) != "" and (run.folder / as_text(image)).is_file()


def _picture(run: RunData, line: Line) -> tuple[str, str]:
    """Reads the kept picture as a data URI, or returns "" and why there is none."""
    if not is_kept(run, line["image"]):
        return "", "image not kept"
    try:
        with Image.open(run.folder / line["image"]) as image:
            return _data_uri(image.convert("RGB"), "webp", quality=90), ""
    except (OSError, SyntaxError):  # what PIL raises on a damaged file
        return "", "image damaged"


def _data_uri(image: Image.Image, kind: str, **how: int) -> str:
    """Encodes a picture as a data URI."""
    file = io.BytesIO()
    image.save(file, format=kind, **how)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _difference_map(line: Line, ar: Line | None) -> tuple[str, str]:
    """Maps the codes that are not AR's of the same prompt and seed, and says what the map shows; no
    map where there is nothing to compare."""
    codes = line["codes"]
    if ar is None or ar["status"] != "ok" or not 0 < len(codes) == len(ar["codes"]):
        return "", "no codes of AR to compare with"
    if ar["seed"] != line["seed"]:
        return "", "AR has no image of this seed"
    other = np.asarray(codes) != np.asarray(ar["codes"])
    words = f"{other.sum()} of {len(codes)} codes not AR's; first: code {other.argmax()}"
    words = words if other.any() else "every code is AR's"
    return _code_map(np.where(other[:, None], OTHER, SAME)), words


def _code_map(colors: np.ndarray) -> str:
    """Draws [L, 3] colours in raster order, one pixel per code; cells past L are white."""
    side = math.ceil(math.sqrt(len(colors)))
    cells = np.full((side * side, 3), 255, np.uint8)
    cells[: len(colors)] = colors
    return _data_uri(Image.fromarray(cells.reshape(side, side, 3)), "png")
