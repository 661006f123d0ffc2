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
from PIL import Image, ImageDraw, ImageFont

from bench.records.run_data import Entry, RunData, Section, as_text

Color = tuple[int, int, int]
PAPER, INK, MUTED, LINE = (255, 255, 255), (34, 34, 34), (110, 110, 110), (224, 224, 224)
TILE, GAP, CAPTION, MARGIN = 128, 8, 236, 16  # pixels
ACROSS = 12  # decoders in one block at most; more are shared out among blocks below each other
PROMPTS = 8
SIDE, CARD_GAP, CARDS = 192, 10, 3  # of the code maps: pixels, pixels, cards a line
Font = ImageFont.FreeTypeFont

# Index = CodeKind. Light grey, then four hues that colour-blind readers tell apart (Okabe and Ito).
KINDS = ("target", "draft", "relaxed", "corrected", "bonus")
MEANINGS = (
    "sampled from the target",
    "exact rule accepts it too",
    "only the relaxed rule accepts it",
    "after a rejection",
    "after a whole path",
)
COLORS: tuple[Color, ...] = (
    (190, 190, 190),
    (0, 114, 178),
    (230, 159, 0),
    (170, 30, 45),
    (130, 210, 190),
)


def contact_sheet(run: RunData, prompts: int = PROMPTS) -> Image.Image | None:
    """The sheet, or None when no decoder kept an image."""
    chosen = sheet_prompts(run, prompts)
    if not chosen:
        return None
    return _stacked(
        [
            _block(run, section, entries, chosen, continued=number > 0)
            for section in run.sections
            for number, entries in enumerate(_shared_out(section.decoders))
        ]
    )


def code_maps(run: RunData) -> Image.Image | None:
    """All cards on one sheet, a block a section; None when no image has a trace."""
    chosen = sheet_prompts(run, 1)
    if not chosen:
        return None
    index, prompt = chosen[0]
    width = MARGIN * 2 + CARDS * (2 * SIDE + 4) + (CARDS - 1) * CARD_GAP * 2
    cards = [_cards(run, section, index, width) for section in run.sections]
    return _stacked([_key(prompt, width), *cards])


def _stacked(parts: Sequence[Image.Image]) -> Image.Image:
    """Parts below each other."""
    width, height = max(part.width for part in parts), sum(part.height for part in parts)
    sheet, top = Image.new("RGB", (width, height), PAPER), 0
    for part in parts:
        sheet.paste(part, (0, top))
        top += part.height
    return sheet


def _shared_out(entries: list[Entry]) -> list[list[Entry]]:
    """The columns of each block: as few blocks as may be, as even as may be."""
    count = -(-len(entries) // ACROSS)
    each = -(-len(entries) // max(count, 1))
    return [entries[at : at + each] for at in range(0, len(entries), max(each, 1))]


def _block(
    run: RunData,
    section: Section,
    entries: list[Entry],
    prompts: list[tuple[int, str]],
    *,
    continued: bool,
) -> Image.Image:
    """One section's columns under its title."""
    title, head, body = font(22, bold=True), font(17, bold=True), font(17)
    names = [wrap(entry.name, head, TILE, breaks=" _-/") for entry in entries]
    head_height = max(len(lines) for lines in names) * line_height(head) + 6
    rows = len(prompts)
    top = MARGIN + line_height(title) + 8
    label = section.title + (" (continued)" if continued else "")
    columns = CAPTION + len(entries) * (TILE + GAP)
    width = MARGIN * 2 + max(columns, math.ceil(title.getlength(label)))
    block = Image.new("RGB", (width, top + head_height + rows * (TILE + GAP) + MARGIN), PAPER)
    draw = ImageDraw.Draw(block)
    draw.text((MARGIN, MARGIN), label, font=title, fill=INK)
    for column, lines in enumerate(names):
        height = len(lines) * line_height(head)
        left = MARGIN + CAPTION + column * (TILE + GAP)
        color = MUTED if entries[column].failed else INK
        write(draw, (left, top + head_height - 6 - height), lines, head, color)
    for at, (index, prompt) in enumerate(prompts):
        y = top + head_height + at * (TILE + GAP)
        draw.line([(MARGIN, y - GAP // 2), (width - MARGIN, y - GAP // 2)], fill=LINE)
        write(draw, (MARGIN, y), _caption(prompt), body)
        for column, entry in enumerate(entries):
            picture = tile(run, entry, image_row(entry, index), TILE)
            block.paste(picture, (MARGIN + CAPTION + column * (TILE + GAP), y))
    return block


def _caption(prompt: str) -> list[str]:
    """The prompt in the lines that fit next to a tile; an ellipsis marks what does not."""
    face = font(17)
    lines = wrap(prompt, face, CAPTION - 14)
    room = TILE // line_height(face)
    if len(lines) > room:
        lines = [*lines[: room - 1], lines[room - 1].rstrip(" ,.") + " …"]
    return lines


def _key(prompt: str, width: int) -> Image.Image:
    """The prompt and what the colours of code maps mean."""
    face, small = font(18), font(14)
    lines = wrap(f"“{prompt}”", face, width - 2 * MARGIN)
    room = MARGIN + len(lines) * line_height(face) + 12
    part = Image.new("RGB", (width, room + 25 + 2 * line_height(small) + 10), PAPER)
    draw = ImageDraw.Draw(part)
    write(draw, (MARGIN, MARGIN), lines, face)
    step = (width - 2 * MARGIN) / len(KINDS)
    for at, (kind, meaning) in enumerate(zip(KINDS, MEANINGS, strict=True)):
        left = MARGIN + at * step
        draw.rectangle([left, room, left + 20, room + 20], fill=COLORS[at])
        draw.text((left + 28, room), kind, font=font(17, bold=True), fill=INK)
        write(draw, (left, room + 25), wrap(meaning, small, int(step) - 8)[:2], small, MUTED)
    return part


def _cards(run: RunData, section: Section, index: int, width: int) -> Image.Image:
    """One section's cards under its title."""
    title = font(21, bold=True)
    cards = [_card(run, entry, image_row(entry, index)) for entry in section.decoders]
    top = line_height(title) + 12
    height = cards[0].height + CARD_GAP
    part = Image.new("RGB", (width, top + -(-len(cards) // CARDS) * height + MARGIN), PAPER)
    ImageDraw.Draw(part).text((MARGIN, 4), section.title, font=title, fill=INK)
    for at, card in enumerate(cards):
        line, column = divmod(at, CARDS)
        part.paste(card, (MARGIN + column * (card.width + 2 * CARD_GAP), top + line * height))
    return part


def _card(run: RunData, entry: Entry, row: pd.Series | None) -> Image.Image:
    """Name, share of each kind, image and map."""
    head, small = font(17, bold=True), font(13)
    top = line_height(head) + line_height(small) + 8
    card = Image.new("RGB", (2 * SIDE + 4, top + SIDE), PAPER)
    draw = ImageDraw.Draw(card)
    name = wrap(entry.name, head, card.width, breaks=" _-/")[0]
    draw.text((0, 0), name, font=head, fill=MUTED if entry.failed else INK)
    lines = wrap(_shares(kinds_of(row)), small, card.width)[:1]
    write(draw, (0, line_height(head) + 2), lines, small, MUTED)
    card.paste(tile(run, entry, row, SIDE), (0, top))
    card.paste(_map(entry, kinds_of(row)), (SIDE + 4, top))
    return card


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


def wrap(text: str, face: Font, width: int, breaks: str = " ") -> list[str]:
    """Lines of at most `width` pixels; breaks after any of `breaks`, inside a word if it must."""
    lines, line = [], ""
    for piece in re.findall(f"[^{re.escape(breaks)}]*[{re.escape(breaks)}]?", text):
        if face.getlength((line + piece).rstrip()) <= width:
            line += piece
            continue
        if line.strip():
            lines.append(line.strip())
        line = piece
        while face.getlength(line.rstrip()) > width and len(line) > 1:
            fit = max(n for n in range(1, len(line)) if n == 1 or face.getlength(line[:n]) <= width)
            lines.append(line[:fit])
            line = line[fit:]
    return [*lines, line.strip()] if line.strip() else lines


def write(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    lines: Sequence[str],
    face: Font,
    color: Color = INK,
) -> None:
    """Left-aligned lines from the top left corner `place`."""
    x, y = place
    for line in lines:
        draw.text((x, y), line, font=face, fill=color)
        y += line_height(face)


def line_height(face: Font) -> int:
    return round(face.size * 1.25)


def sheet_prompts(run: RunData, count: int) -> list[tuple[int, str]]:
    """(prompt_index, prompt) of up to `count` prompts that most decoders have an image of."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    rows = rows[[kept(run, image) for image in rows["image"]]]
    if rows.empty:
        return []
    have = rows.groupby("prompt_index")["decoder"].nunique()
    order = sorted(have.index, key=lambda index: (-have[index], index))[:count]
    names = rows.drop_duplicates("prompt_index").set_index("prompt_index")["prompt"]
    return [(int(index), as_text(names[index])) for index in sorted(order)]


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


def tile(run: RunData, entry: Entry, row: pd.Series | None, side: int) -> Image.Image:
    """The kept image at `side` pixels (nearest neighbour), or a blank with the reason."""
    if row is None:
        return blank(side, "failed" if entry.failures or entry.failed else "not run")
    if not kept(run, row["image"]):
        return blank(side, "image not kept")
    try:
        with Image.open(run.folder / row["image"]) as image:
            return image.convert("RGB").resize((side, side), Image.Resampling.NEAREST)
    except (OSError, SyntaxError):  # what PIL raises on a damaged file
        return blank(side, "image damaged")


def blank(side: int, reason: str) -> Image.Image:
    """A light tile with a reason in its middle."""
    image = Image.new("RGB", (side, side), (243, 243, 243))
    draw = ImageDraw.Draw(image)
    face = font(15)
    lines = wrap(reason, face, side - 12)
    height = line_height(face)
    top = (side - height * len(lines)) / 2
    for at, line in enumerate(lines):
        left = (side - face.getlength(line)) / 2
        draw.text((left, top + at * height), line, font=face, fill=MUTED)
    return image
