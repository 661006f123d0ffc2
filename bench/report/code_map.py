"""For one image per decoder: the image, and beside it how each of its codes came to be.

A code is sampled from the target, an accepted draft, a draft that only the relaxed rule accepted, a
correction after a rejection, or the bonus after a wholly accepted path (`decoders.api.CodeKind`).
The map has one cell a code, in raster order, over the same area as the image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from bench.report.images import (
    INK,
    MUTED,
    PAPER,
    blank,
    font,
    image_row,
    line_height,
    sheet_prompts,
    tile,
    wrap,
    write,
)
from bench.report.model import Entry, Run, Section

# Index = CodeKind. Light grey, then four hues that colour-blind readers tell apart (Okabe and Ito).
KINDS = ("target", "draft", "relaxed", "corrected", "bonus")
MEANINGS = (
    "sampled from the target",
    "exact rule accepts it too",
    "only the relaxed rule accepts it",
    "after a rejection",
    "after a whole path",
)
COLORS: tuple[tuple[int, int, int], ...] = (
    (190, 190, 190),
    (0, 114, 178),
    (230, 159, 0),
    (170, 30, 45),
    (130, 210, 190),
)
SIDE, GAP, MARGIN, ACROSS = 192, 10, 16, 3  # pixels, pixels, pixels, cards a line


def kind_map(kinds: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[L] CodeKind values -> [H, W, 3] colours, one pixel a code; cells past L are white.

    Raises ValueError on a value that is no CodeKind.
    """
    kinds = np.asarray(kinds)
    if kinds.size and int(kinds.max()) >= len(KINDS):
        raise ValueError(f"code kinds must be 0 to {len(KINDS) - 1}, found {int(kinds.max())}")
    side = math.ceil(math.sqrt(len(kinds)))
    cells = np.full((side * side, 3), 255, dtype=np.uint8)
    cells[: len(kinds)] = np.array(COLORS, dtype=np.uint8)[kinds]
    return cells.reshape(side, side, 3)  # [H, W, 3]


def code_maps(run: Run) -> Image.Image | None:
    """All cards on one sheet, a block a section; None when no image has a trace."""
    chosen = sheet_prompts(run, 1)
    if not chosen:
        return None
    index, prompt = chosen[0]
    width = MARGIN * 2 + ACROSS * (2 * SIDE + 4) + (ACROSS - 1) * GAP * 2
    parts = [_key(prompt, width)]
    for section in run.sections:
        parts.append(_section(run, section, index, width))
    sheet = Image.new("RGB", (width, sum(part.height for part in parts)), PAPER)
    top = 0
    for part in parts:
        sheet.paste(part, (0, top))
        top += part.height
    return sheet


def _key(prompt: str, width: int) -> Image.Image:
    """The prompt and what the colours mean."""
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


def _section(run: Run, section: Section, index: int, width: int) -> Image.Image:
    title = font(21, bold=True)
    cards = [_card(run, entry, image_row(entry, index)) for entry in section.decoders]
    lines = -(-len(cards) // ACROSS)
    top = line_height(title) + 12
    height = cards[0].height + GAP
    part = Image.new("RGB", (width, top + lines * height + MARGIN), PAPER)
    ImageDraw.Draw(part).text((MARGIN, 4), section.title, font=title, fill=INK)
    for at, card in enumerate(cards):
        line, column = divmod(at, ACROSS)
        part.paste(card, (MARGIN + column * (card.width + 2 * GAP), top + line * height))
    return part


def _card(run: Run, entry: Entry, row: pd.Series | None) -> Image.Image:
    """Name, share of each kind, image and map."""
    head, small = font(17, bold=True), font(13)
    top = line_height(head) + line_height(small) + 8
    card = Image.new("RGB", (2 * SIDE + 4, top + SIDE), PAPER)
    draw = ImageDraw.Draw(card)
    name = wrap(entry.name, head, card.width, breaks=" _-/")[0]
    draw.text((0, 0), name, font=head, fill=MUTED if entry.failed else INK)
    lines = wrap(_shares(row), small, card.width)[:1]
    write(draw, (0, line_height(head) + 2), lines, small, MUTED)
    card.paste(tile(run, entry, row, SIDE), (0, top))
    card.paste(_map(entry, row), (SIDE + 4, top))
    return card


def kinds_of(row: pd.Series | Mapping[str, Any] | None) -> NDArray[np.uint8]:
    """How each code of an image came to be; empty where that was not recorded."""
    if row is None or row["kind"] is None:
        return np.empty(0, dtype=np.uint8)
    return np.asarray(row["kind"], dtype=np.uint8)


def _map(entry: Entry, row: pd.Series | None) -> Image.Image:
    kinds = kinds_of(row)
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


def _shares(row: pd.Series | None) -> str:
    """`draft 61 %, relaxed 20 %, ...` of the codes, kinds from half a percent on."""
    kinds = kinds_of(row)
    if not len(kinds):
        return ""
    counts = np.bincount(kinds, minlength=len(KINDS))
    return ", ".join(
        f"{KINDS[kind]} {100 * count / len(kinds):.0f} %"
        for kind, count in enumerate(counts)
        if 200 * count >= len(kinds)
    )
