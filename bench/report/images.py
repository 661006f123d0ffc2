"""Which image to show for a decoder and a prompt, and drawing text on sheets (PIL)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from bench.report.model import Entry, Run, as_text

PAPER, INK, MUTED, LINE = (255, 255, 255), (34, 34, 34), (110, 110, 110), (224, 224, 224)
Font = ImageFont.FreeTypeFont


@lru_cache(maxsize=16)
def font(size: int, bold: bool = False) -> Font:
    """DejaVu Sans as shipped with matplotlib: the same on every machine."""
    from matplotlib.font_manager import FontProperties, findfont

    weight = "bold" if bold else "normal"
    return ImageFont.truetype(findfont(FontProperties(family="DejaVu Sans", weight=weight)), size)


def wrap(text: str, face: Font, width: int, breaks: str = " ") -> list[str]:
    """Lines of at most `width` pixels; breaks after any of `breaks`, inside a word if it must."""
    lines, line = [], ""
    for piece in _pieces(text, breaks):
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


def _pieces(text: str, breaks: str) -> list[str]:
    pieces, current = [], ""
    for char in text:
        current += char
        if char in breaks:
            pieces.append(current)
            current = ""
    return [*pieces, current]


def write(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    lines: Sequence[str],
    face: Font,
    color: tuple[int, int, int] = INK,
) -> None:
    """Left-aligned lines from the top left corner `place`."""
    x, y = place
    for line in lines:
        draw.text((x, y), line, font=face, fill=color)
        y += line_height(face)


def line_height(face: Font) -> int:
    return round(face.size * 1.25)


def sheet_prompts(run: Run, count: int) -> list[tuple[int, str]]:
    """(prompt_index, prompt) of up to `count` prompts that most decoders have an image of."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    rows = rows[[kept(run, image) for image in rows["image"]]]
    if rows.empty:
        return []
    have = rows.groupby("prompt_index")["decoder"].nunique()
    order = sorted(have.index, key=lambda index: (-have[index], index))[:count]
    names = rows.drop_duplicates("prompt_index").set_index("prompt_index")["prompt"]
    return [(int(index), as_text(names[index])) for index in sorted(order)]


def kept(run: Run, image: object) -> bool:
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


def tile(run: Run, entry: Entry, row: pd.Series | None, side: int) -> Image.Image:
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
