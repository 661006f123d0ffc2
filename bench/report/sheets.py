"""Two sheets of images, the contact sheet and the code maps, and which image is shown of a decoder.

Contact sheet: rows are prompts, columns are decoders, one block a section. Code maps: of one prompt
each decoder's image, and below it how each of its codes came to be: sampled from the target, an
accepted draft, a draft that only the relaxed rule accepted, a correction after a rejection, or the
bonus after a wholly accepted path (`decoders.api.CodeKind`). A map has one cell a code, in raster
order, over the same area as the image.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from bench.data.files import write_bytes
from bench.records.run_data import Entry, RunData, as_text
from bench.report.style import MUTED, styled

Color = tuple[int, int, int]
PIXELS = 128  # of a tile's side
GAP, WORDS, HEAD = 8, 200, 56  # pixels between tiles, of the rows' words, above the tiles
ACROSS = 10  # decoders in a block at most; more are shared out among blocks below each other
PROMPTS = 8
LARGEST = 200_000  # bytes of a sheet

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


@dataclass(frozen=True)
class Block:
    """A grid of tiles under a title: pixels [PIXELS, PIXELS, 3], or the reason why there are
    none."""

    title: str
    columns: Sequence[str]
    rows: Sequence[str]
    tiles: Sequence[Sequence[NDArray[np.uint8] | str]]  # row by row

    @property
    def height(self) -> int:
        return HEAD + len(self.rows) * (PIXELS + GAP)


@dataclass(frozen=True)
class Sheet:
    """A WebP image of the page with its heading and caption."""

    title: str
    caption: str
    path: Path

    @property
    def source(self) -> str:
        return data_uri(self.path.read_bytes(), "webp")


def data_uri(data: bytes, kind: str) -> str:
    """A picture inside a page."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def write_sheets(run: RunData, folder: Path) -> list[Sheet]:
    """Writes the sheets, as WebP of at most `LARGEST` bytes where quality 30 allows it; removes
    older ones where there are none, so that none goes stale."""
    sheets = []
    for draw, title, caption in (
        (contact_sheet, "Contact sheet", "Same prompt and same noise in every row."),
        (code_maps, "How each code came to be",
         "Lower rows: one cell per code, in its place in the image above."),
    ):  # fmt: skip
        image, path = draw(run), folder / f"{draw.__name__}.webp"
        path.unlink(missing_ok=True)
        if image is None:
            continue
        for quality in range(90, 20, -10):
            file = io.BytesIO()
            image.save(file, format="WEBP", quality=quality, method=6)
            if file.tell() <= LARGEST:
                break
        write_bytes(path, file.getvalue())
        sheets.append(Sheet(title, caption, path))
    return sheets


def contact_sheet(run: RunData) -> Image.Image | None:
    """The sheet, or None when no decoder kept an image."""
    chosen = pictured(run, PROMPTS)
    blocks = [
        Block(
            title,
            [entry.name for entry in entries],
            [prompt for _, prompt in chosen],
            [[tile(run, entry, image_row(entry, index)) for entry in entries]
             for index, _ in chosen],
        )
        for title, entries in _shared_out(run)
    ]  # fmt: skip
    return _sheet(blocks, {}) if chosen else None


def code_maps(run: RunData) -> Image.Image | None:
    """An image per decoder and its map; None when no image was kept."""
    chosen = pictured(run, 1)
    blocks = []
    for title, entries in _shared_out(run) if chosen else ():
        rows = [image_row(entry, chosen[0][0]) for entry in entries]
        kinds = [kinds_of(row) for row in rows]
        names = [entry.name for entry in entries]
        images = [tile(run, entry, row) for entry, row in zip(entries, rows, strict=True)]
        maps = [_scaled(Image.fromarray(kind_map(k))) if len(k) else "no trace" for k in kinds]
        blocks.append(Block(title, names, [chosen[0][1], "how each code came to be"],
                            [images, maps]))  # fmt: skip
    return _sheet(blocks, KINDS) if blocks else None


def _shared_out(run: RunData) -> list[tuple[str, list[Entry]]]:
    """The title and columns of each block: as few blocks as may be, as even as may be."""
    blocks = []
    for section in run.sections:
        entries = section.decoders
        parts = np.array_split(np.arange(len(entries)), max(-(-len(entries) // ACROSS), 1))
        for number, part in enumerate(parts):
            title = section.title + " (continued)" * (number > 0)
            blocks.append((title, [entries[at] for at in part]))
    return blocks


@styled
def _sheet(blocks: Sequence[Block], kinds: Mapping[str, tuple[Color, str]] = {}) -> Image.Image:
    """Blocks below each other, with the key of the kinds; one pixel of a tile is one of the
    sheet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    width = WORDS + max(len(block.columns) for block in blocks) * (PIXELS + GAP) + GAP
    columns = max(width // 320, 1)  # of the key
    height = sum(block.height for block in blocks) + 24 * -(-len(kinds) // columns)
    figure = Figure((width / 100, height / 100), dpi=100, facecolor="white")
    canvas, top = FigureCanvasAgg(figure), height
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    for block in blocks:
        axes.text(GAP, top - GAP, block.title, va="top", weight="bold", fontsize=11)
        for column, name in enumerate(block.columns):
            left = WORDS + column * (PIXELS + GAP)
            axes.text(left, top - HEAD + 3, "\n".join(textwrap.wrap(name, 19)[:2]), fontsize=8.5)
        for row, (words, tiles) in enumerate(zip(block.rows, block.tiles, strict=True)):
            low = top - HEAD - PIXELS - row * (PIXELS + GAP)
            text = "\n".join(textwrap.wrap(words, 26)[:6])
            axes.text(GAP, low + PIXELS, text, va="top", fontsize=8.5)
            for column, pixels in enumerate(tiles):
                left = WORDS + column * (PIXELS + GAP)
                shown = pixels
                if isinstance(pixels, str):
                    shown = np.full((1, 1, 3), 240, np.uint8)
                    axes.text(left + PIXELS / 2, low + PIXELS / 2, pixels, ha="center",
                              color=MUTED, fontsize=8.5)  # fmt: skip
                place = (left, left + PIXELS, low, low + PIXELS)
                axes.imshow(shown, extent=place, interpolation="nearest", aspect="auto")
        top -= block.height
    handles = [Patch(color="#{:02x}{:02x}{:02x}".format(*color), label=f"{name}: {meaning}")
               for name, (color, meaning) in kinds.items()]  # fmt: skip
    if handles:
        figure.legend(handles=handles, loc="lower left", ncols=columns)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _scaled(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.NEAREST))


def tile(run: RunData, entry: Entry, row: pd.Series | None) -> NDArray[np.uint8] | str:
    """[PIXELS, PIXELS, 3] of the kept image (nearest neighbour), or why there is none."""
    if row is None:
        return "failed" if entry.failures or entry.failed else "not run"
    image = picture(run, row)
    return image if isinstance(image, str) else _scaled(image)


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


def pictured(run: RunData, count: int, all_prompts: bool = False) -> list[tuple[int, str]]:
    """(prompt_index, prompt on one line) of up to `count` prompts, first those of which most
    decoders have an image. all_prompts: also those of which none has."""
    rows = run.records[(run.records["status"] == "ok") & (run.records["protocol"] != "reseed")]
    images = rows["image"].map(lambda image: is_kept(run, image)).astype(bool)
    rows = rows.assign(by=rows["decoder"].where(images))
    have = rows.groupby("prompt_index").agg({"by": "nunique", "prompt": "first"})
    have = have if all_prompts else have[have["by"] > 0]
    most = have.sort_values("by", ascending=False, kind="stable")[:count].sort_index()
    texts = [" ".join(as_text(text).split()) for text in most["prompt"]]
    return list(zip(map(int, most.index), texts, strict=True))


def is_kept(run: RunData, image: object) -> bool:
    """Whether a row's picture lies in the run's folder; `image`: its path there, as in the row."""
    return as_text(image) != "" and (run.folder / as_text(image)).is_file()


def image_row(entry: Entry, prompt_index: int) -> pd.Series | None:
    """The entry's row of a prompt, see `shown_rows`; None without one."""
    rows = shown_rows(entry.ok[entry.ok["prompt_index"] == prompt_index])
    return None if rows.empty else rows.iloc[0]


def shown_rows(rows: pd.DataFrame) -> pd.DataFrame:
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
