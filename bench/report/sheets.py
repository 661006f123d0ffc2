"""Two sheets of images: the contact sheet and the code maps. And which image is shown of a decoder.

Contact sheet: rows are prompts, columns are decoders, one block a section. Code maps: for one image
per decoder the image, and next to it how each of its codes came to be: sampled from the target, an
accepted draft, a draft that only the relaxed rule accepted, a correction after a rejection, or the
bonus after a wholly accepted path (`decoders.api.CodeKind`). A map has one cell a code, in raster
order, over the same area as the image.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from bench.records.run_data import Entry, RunData, as_text

Color = tuple[int, int, int]
PAPER, INK, MUTED, LINE = (255, 255, 255), (34, 34, 34), (110, 110, 110), (224, 224, 224)
TILE, GAP, CAPTION, MARGIN = 128, 8, 236, 16  # pixels
ACROSS = 12  # decoders in one block at most; more are shared out among blocks below each other
PROMPTS = 8
SIDE, CARD_GAP, CARDS = 192, 20, 3  # of the code maps: pixels, pixels, cards a line
BREAKS = " _-/"  # where the name of a decoder is broken
Font = ImageFont.FreeTypeFont

# How a code came to be, in the order of CodeKind: colour and meaning. Light grey, then four hues
# that colour-blind readers tell apart (Okabe and Ito).
KINDS: dict[str, tuple[Color, str]] = {
    "target": ((190, 190, 190), "sampled from the target"),
    "draft": ((0, 114, 178), "exact rule accepts it too"),
    "relaxed": ((230, 159, 0), "only the relaxed rule accepts it"),
    "corrected": ((170, 30, 45), "after a rejection"),
    "bonus": ((130, 210, 190), "after a whole path"),
}
COLORS = [color for color, _ in KINDS.values()]


def contact_sheet(run: RunData) -> Image.Image | None:
    """The sheet, or None when no decoder kept an image."""
    chosen = pictured(run, PROMPTS)
    if not chosen:
        return None
    blocks = [
        _block(run, section.title + " (continued)" * (number > 0), entries, chosen)
        for section in run.sections
        for number, entries in enumerate(shared_out(section.decoders))
    ]
    return joined(blocks)


def shared_out(entries: list[Entry]) -> list[list[Entry]]:
    """The columns of each block: as few blocks as may be, as even as may be."""
    blocks = np.array_split(np.arange(len(entries)), max(-(-len(entries) // ACROSS), 1))
    return [[entries[at] for at in block] for block in blocks if len(block)]


def _block(
    run: RunData, title: str, entries: list[Entry], prompts: list[tuple[int, str]]
) -> Image.Image:
    """One section's columns under its title."""
    head, body = font(17, bold=True), font(17)
    names = [text(e.name, head, TILE, MUTED if e.failed else INK, breaks=BREAKS) for e in entries]
    rows = [joined([paper(CAPTION - GAP, 1), *names], across=True, gap=GAP, low=True)]
    for index, prompt in prompts:
        caption = text(prompt, body, CAPTION - GAP, most=TILE // line_height(body))
        tiles = [tile(run, entry, image_row(entry, index), TILE) for entry in entries]
        row = joined([caption, *tiles], across=True, gap=GAP)
        rows += [paper(row.width, 1, LINE), row]
    parts = [text(title, font(22, bold=True)), *rows]
    return ImageOps.expand(joined(parts, gap=GAP // 2), MARGIN, PAPER)


def code_maps(run: RunData) -> Image.Image | None:
    """All cards on one sheet, a block a section; None when no image has a trace."""
    chosen = pictured(run, 1)
    if not chosen:
        return None
    index, prompt = chosen[0]
    parts = [_key(prompt, CARDS * (2 * SIDE + 4) + (CARDS - 1) * CARD_GAP)]
    for section in run.sections:
        cards = [_card(run, entry, image_row(entry, index)) for entry in section.decoders]
        lines = [cards[at : at + CARDS] for at in range(0, len(cards), CARDS)]
        parts.append(text(section.title, font(21, bold=True)))
        parts += [joined(line, across=True, gap=CARD_GAP) for line in lines]
    return ImageOps.expand(joined(parts, gap=16), MARGIN, PAPER)


def _key(prompt: str, width: int) -> Image.Image:
    """The prompt and what the colours of code maps mean."""
    step, kinds = width // len(KINDS), []
    for kind, (color, meaning) in KINDS.items():
        name = text(kind, font(17, bold=True))
        heading = joined([paper(21, 21, color), name], across=True, gap=GAP)
        said = text(meaning, font(14), step - GAP, MUTED, most=2)
        kinds.append(joined([heading, said], gap=4))
    parts = [text(f"“{prompt}”", font(18), width), joined(kinds, across=True, gap=GAP)]
    return joined(parts, gap=12)


def _card(run: RunData, entry: Entry, row: pd.Series | None) -> Image.Image:
    """Name, share of each kind, image and map."""
    kinds, width = kinds_of(row), 2 * SIDE + 4
    name = text(entry.name, font(17, bold=True), width, MUTED if entry.failed else INK,
                most=1, breaks=BREAKS)  # fmt: skip
    shares = text(_shares(kinds), font(13), width, MUTED, most=1)
    views = joined([tile(run, entry, row, SIDE), _map(entry, kinds)], across=True, gap=4)
    return joined([name, shares, views], gap=4)


def kinds_of(row: pd.Series | Mapping[str, Any] | None) -> NDArray[np.uint8]:
    """How each code of an image came to be; empty where that was not recorded."""
    return np.asarray([] if row is None or row["kind"] is None else row["kind"], dtype=np.uint8)


def kind_map(kinds: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[L] CodeKind values -> [H, W, 3] colours, see `raster`."""
    return raster(np.array(COLORS)[kinds])


def raster(colors: ArrayLike) -> NDArray[np.uint8]:
    """[L, 3] colours -> [H, W, 3], one pixel a code; cells past L are white."""
    colors = np.asarray(colors, dtype=np.uint8)
    side = math.ceil(math.sqrt(len(colors)))
    cells = np.full((side * side, 3), 255, dtype=np.uint8)
    cells[: len(colors)] = colors
    return cells.reshape(side, side, 3)  # [H, W, 3]


def _map(entry: Entry, kinds: NDArray[np.uint8]) -> Image.Image:
    if not len(kinds):
        return blank(SIDE, "failed" if entry.failed else "no trace")
    cells = Image.fromarray(kind_map(kinds))
    picture = cells.resize((SIDE, SIDE), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    for at in range(1, cells.width):
        place = round(at * SIDE / cells.width)
        draw.line([(place, 0), (place, SIDE)], fill=PAPER)
        draw.line([(0, place), (SIDE, place)], fill=PAPER)
    return picture


def _shares(kinds: NDArray[np.uint8]) -> str:
    """`draft 61 %, relaxed 20 %, ...` of the codes, kinds from half a percent on."""
    counts = np.bincount(kinds, minlength=len(KINDS))
    return ", ".join(
        f"{kind} {100 * count / len(kinds):.0f} %"
        for kind, count in zip(KINDS, counts, strict=True)
        if count and 200 * count >= len(kinds)
    )


@lru_cache(maxsize=16)
def font(size: int, bold: bool = False) -> Font:
    """DejaVu Sans as shipped with matplotlib: the same on every machine."""
    from matplotlib.font_manager import FontProperties, findfont

    weight = "bold" if bold else "normal"
    return ImageFont.truetype(findfont(FontProperties(family="DejaVu Sans", weight=weight)), size)


def line_height(face: Font) -> int:
    return round(face.size * 1.25)


def wrap(words: str, face: Font, width: float, breaks: str = " ") -> list[str]:
    """Lines of at most `width` pixels; breaks after any of `breaks`, inside a word if it must."""
    lines = [""]
    for piece in re.findall(f"[^{re.escape(breaks)}]*[{re.escape(breaks)}]?", words):
        for part in [piece] if face.getlength(piece.rstrip()) <= width else piece:
            if lines[-1] and face.getlength((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.strip() for line in lines if line.strip()]


def text(
    words: str,
    face: Font,
    width: float = math.inf,
    color: Color = INK,
    most: int | None = None,
    breaks: str = " ",
) -> Image.Image:
    """Wrapped words on paper of that width (inf: as wide as they are), of at least one line and at
    most so many: an ellipsis marks what is left out."""
    lines = wrap(words, face, width, breaks)
    if most is not None and len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1].rstrip(" ,.") + " …"]
    wide = width if math.isfinite(width) else face.getlength(words)
    drawn = paper(math.ceil(wide), max(len(lines), 1) * line_height(face))
    for at, line in enumerate(lines):
        ImageDraw.Draw(drawn).text((0, at * line_height(face)), line, font=face, fill=color)
    return drawn


def paper(width: int, height: int, color: Color = PAPER) -> Image.Image:
    """A rectangle."""
    return Image.new("RGB", (width, height), color)


def joined(
    parts: Sequence[Image.Image], *, across: bool = False, gap: int = 0, low: bool = False
) -> Image.Image:
    """Parts below each other, or next to each other; low: at their lower ends."""
    wide, high = [part.width for part in parts], [part.height for part in parts]
    room = gap * (len(parts) - 1)
    sheet = paper(sum(wide) + room, max(high)) if across else paper(max(wide), sum(high) + room)
    at = 0
    for part in parts:
        place = (at, (sheet.height - part.height) * low) if across else (0, at)
        sheet.paste(part, place)
        at += (part.width if across else part.height) + gap
    return sheet


def pictured(run: RunData, count: int, all_prompts: bool = False) -> list[tuple[int, str]]:
    """(prompt_index, prompt) of up to `count` prompts, those of which most decoders have an image
    first chosen. all_prompts: also those of which none has."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    images = rows["image"].map(lambda image: kept(run, image)).astype(bool)
    rows = rows.assign(by=rows["decoder"].where(images))
    have = rows.groupby("prompt_index").agg({"by": "nunique", "prompt": "first"})
    have = have if all_prompts else have[have["by"] > 0]
    most = have.sort_values("by", ascending=False, kind="stable")[:count].sort_index()
    return [(int(i), as_text(text)) for i, text in zip(most.index, most["prompt"], strict=True)]


def kept(run: RunData, image: object) -> bool:
    """Whether a row's picture lies in the run's folder; `image`: its path there, as in the row."""
    return as_text(image) != "" and (run.folder / as_text(image)).is_file()


def image_row(entry: Entry, prompt_index: int) -> pd.Series | None:
    """The entry's row of a prompt, see `shown_rows`; None without one."""
    rows = shown_rows(entry.ok[entry.ok["prompt_index"] == prompt_index])
    return None if rows.empty else rows.iloc[0]


def shown_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a prompt: quality before latency, lowest seed first, of an image that was timed
    several times the round that kept its picture."""
    rank = (rows["protocol"] != "quality").astype(int)
    keys = {"rank": rank, "seed": rows["seed"], "unkept": rows["image"].map(as_text) == ""}
    order = pd.DataFrame(keys).sort_values([*keys])
    return rows.loc[order.index].drop_duplicates("prompt_index")


def picture(run: RunData, row: pd.Series | Mapping[str, Any]) -> Image.Image | str:
    """A row's kept image; or why there is none."""
    if not kept(run, row["image"]):
        return "image not kept"
    try:
        with Image.open(run.folder / row["image"]) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError):  # what PIL raises on a damaged file
        return "image damaged"


def tile(run: RunData, entry: Entry, row: pd.Series | None, side: int) -> Image.Image:
    """The kept image at `side` pixels (nearest neighbour), or a blank with the reason."""
    absent = "failed" if entry.failures or entry.failed else "not run"
    found = absent if row is None else picture(run, row)
    if isinstance(found, str):
        return blank(side, found)
    return found.resize((side, side), Image.Resampling.NEAREST)


def blank(side: int, reason: str) -> Image.Image:
    """A light tile with a reason in its middle."""
    image, face = paper(side, side, (243, 243, 243)), font(15)
    lines = "\n".join(wrap(reason, face, side - 12))
    place = (side / 2, side / 2)
    ImageDraw.Draw(image).text(place, lines, MUTED, face, anchor="mm", align="center")
    return image
