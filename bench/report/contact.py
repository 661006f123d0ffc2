"""The contact sheet: rows are prompts, columns are decoders, one block a section."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw

from bench.report.images import (
    INK,
    LINE,
    MUTED,
    PAPER,
    font,
    image_row,
    line_height,
    sheet_prompts,
    tile,
    wrap,
    write,
)
from bench.report.model import Entry, Run, Section

TILE, GAP, CAPTION, MARGIN = 128, 8, 236, 16  # pixels
ACROSS = 12  # decoders in one block at most; more are shared out among blocks below each other
PROMPTS = 8


def contact_sheet(run: Run, prompts: int = PROMPTS) -> Image.Image | None:
    """The sheet, or None when no decoder kept an image."""
    chosen = sheet_prompts(run, prompts)
    if not chosen:
        return None
    blocks = [
        _block(run, section, entries, chosen, continued=number > 0)
        for section in run.sections
        for number, entries in enumerate(_shared_out(section.decoders))
    ]
    width = max(block.width for block in blocks)
    sheet = Image.new("RGB", (width, sum(block.height for block in blocks)), PAPER)
    top = 0
    for block in blocks:
        sheet.paste(block, (0, top))
        top += block.height
    return sheet


def _shared_out(entries: list[Entry]) -> list[list[Entry]]:
    """The columns of each block: as few blocks as may be, as even as may be."""
    count = -(-len(entries) // ACROSS)
    each = -(-len(entries) // max(count, 1))
    return [entries[at : at + each] for at in range(0, len(entries), max(each, 1))]


def _block(
    run: Run,
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
    """The prompt in the lines that fit beside a tile; an ellipsis marks what does not."""
    face = font(17)
    lines = wrap(prompt, face, CAPTION - 14)
    room = TILE // line_height(face)
    if len(lines) > room:
        lines = [*lines[: room - 1], lines[room - 1].rstrip(" ,.") + " …"]
    return lines
