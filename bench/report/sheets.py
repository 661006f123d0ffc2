"""The contact sheet, and which image is shown of a decoder.

Rows are prompts, columns are decoders, one block a section.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from bench.data.files import write_bytes
from bench.records.run_data import Entry, RunData, as_text
from bench.report.style import MUTED, with_style

PIXELS = 128  # of a tile's side
GAP, WORDS, HEAD = 8, 200, 56  # pixels between tiles, of the rows' words, above the tiles
ACROSS = 10  # decoders in a block at most; more are shared out among blocks below each other
PROMPTS = 8
LARGEST = 200_000  # bytes of the sheet
SHEET = "contact_sheet.webp"


def data_uri(data: bytes, kind: str) -> str:
    """A picture inside a page."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def write_sheet(run: RunData, folder: Path) -> Path | None:
    """Writes the contact sheet, as WebP of at most `LARGEST` bytes where quality 30 allows it. None
    where no decoder kept an image: then an older one is removed, so that none goes stale."""
    image, path = contact_sheet(run), folder / SHEET
    path.unlink(missing_ok=True)
    if image is None:
        return None
    for quality in range(90, 20, -10):
        file = io.BytesIO()
        image.save(file, format="WEBP", quality=quality, method=6)
        if file.tell() <= LARGEST:
            break
    write_bytes(path, file.getvalue())
    return path


def contact_sheet(run: RunData) -> Image.Image | None:
    """The sheet, or None when no decoder kept an image."""
    prompts = illustrated_prompts(run, PROMPTS)
    return _sheet(run, _blocks(run), prompts) if prompts else None


def _blocks(run: RunData) -> list[tuple[str, list[Entry]]]:
    """The title and columns of each block: as few blocks as may be, as even as may be."""
    blocks = []
    for section in run.sections:
        entries = section.decoders
        parts = np.array_split(np.arange(len(entries)), max(-(-len(entries) // ACROSS), 1))
        for number, part in enumerate(parts):
            title = section.title + " (continued)" * (number > 0)
            blocks.append((title, [entries[at] for at in part]))
    return blocks


@with_style
def _sheet(
    run: RunData, blocks: Sequence[tuple[str, list[Entry]]], prompts: Sequence[tuple[int, str]]
) -> Image.Image:
    """Blocks below each other; one pixel of a tile is one of the sheet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = WORDS + max(len(entries) for _, entries in blocks) * (PIXELS + GAP) + GAP
    tall = HEAD + len(prompts) * (PIXELS + GAP)  # of a block
    height = tall * len(blocks)
    figure = Figure((width / 100, height / 100), dpi=100, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    for top, (title, entries) in zip(range(height, 0, -tall), blocks, strict=True):
        axes.text(GAP, top - GAP, title, va="top", weight="bold", fontsize=11)
        for row, (_, prompt) in enumerate(prompts):
            high = top - HEAD - row * (PIXELS + GAP)
            text = "\n".join(textwrap.wrap(prompt, 26)[:6])
            axes.text(GAP, high, text, va="top", fontsize=8.5)
        for column, entry in enumerate(entries):
            left, high = WORDS + column * (PIXELS + GAP), top - HEAD
            name = "\n".join(textwrap.wrap(entry.name, 19)[:2])
            axes.text(left, high + 3, name, fontsize=8.5)
            for row, (index, _) in enumerate(prompts):
                low = high - PIXELS - row * (PIXELS + GAP)
                pixels = tile(run, entry, image_row(entry, index))
                if isinstance(pixels, str):
                    axes.text(left + PIXELS / 2, low + PIXELS / 2, pixels, ha="center",
                              color=MUTED, fontsize=8.5)  # fmt: skip
                    pixels = np.full((1, 1, 3), 240, np.uint8)
                place = (left, left + PIXELS, low, low + PIXELS)
                axes.imshow(pixels, extent=place, interpolation="nearest", aspect="auto")
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def tile(run: RunData, entry: Entry, row: pd.Series | None) -> NDArray[np.uint8] | str:
    """[PIXELS, PIXELS, 3] of the kept image (nearest neighbour), or why there is none."""
    if row is None:
        return "failed" if entry.failures or entry.failed else "not run"
    image = picture(run, row)
    if isinstance(image, str):
        return image
    return np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.NEAREST))


def illustrated_prompts(run: RunData, count: int, every: bool = False) -> list[tuple[int, str]]:
    """(prompt_index, prompt on one line) of up to `count` prompts, first those of which most
    decoders have an image. every: also those of which none has."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    images = rows["image"].map(lambda image: is_kept(run, image)).astype(bool)
    rows = rows.assign(by=rows["decoder"].where(images))
    have = rows.groupby("prompt_index").agg({"by": "nunique", "prompt": "first"})
    have = have if every else have[have["by"] > 0]
    most = have.sort_values("by", ascending=False, kind="stable")[:count].sort_index()
    texts = [" ".join(as_text(text).split()) for text in most["prompt"]]
    return list(zip(map(int, most.index), texts, strict=True))


def is_kept(run: RunData, image: object) -> bool:
    """Whether a row's picture lies in the run's folder; `image`: its path there, as in the row."""
    return as_text(image) != "" and (run.folder / as_text(image)).is_file()


def image_row(entry: Entry, prompt_index: int) -> pd.Series | None:
    """The entry's row of a prompt, see `display_rows`; None without one."""
    rows = display_rows(entry.ok[entry.ok["prompt_index"] == prompt_index])
    return None if rows.empty else rows.iloc[0]


def display_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a prompt: quality before latency, lowest seed first."""
    order = rows.assign(timed=rows["protocol"] != "quality").sort_values(["timed", "seed"])
    return order.drop_duplicates("prompt_index")


def picture(run: RunData, row: pd.Series | Mapping[str, Any]) -> Image.Image | str:
    """A row's kept image; or why there is none."""
    if not is_kept(run, row["image"]):
        return "image not kept"
    try:
        with Image.open(run.folder / row["image"]) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError):  # what PIL raises on a damaged file
        return "image damaged"
