"""Prompts from your own file, and the captions of a folder of images: read from a file and matched
to the images by name or by order; written next to the pictures of a run.

.txt holds one a line; .csv and .tsv are tables; .json is a list; captions may be .jsonl too.
Why strict: a score of 5,000 images with shifted captions looks like a bad model. Counts and names
must agree; whoever wants fewer images says so (`limit=`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from bench.data.errors import PromptError
from bench.data.files import write_text
from bench.prompts import Prompt
from decoders.documents import one_line, read_items, require_readable
from decoders.image_files import HIDDEN
from decoders.kinds import validate

COLUMNS = ("prompt", "caption", "text")
IMAGE_COLUMNS = ("image", "file", "file_name")
READERS = (".txt", ".csv", ".tsv", ".json")
HINT = "set prompts.path="
CAPTIONS = "captions.json"  # of the pictures of a run


def load(count: int | None, path: str, quotes: bool = True) -> list[Prompt]:
    """The prompts of a file. Tables and lists of mappings need a key `prompt` (or `caption`,
    `text`) and may have `id` and `category`. Blank lines at the end of a .txt are ignored, others
    are empty prompts. quotes: see `read_items`. Raises PromptError, DecoderError."""
    source = Path(path)
    items = read_items(source, "prompt", READERS, HINT, quotes)
    if not isinstance(items, list):
        raise PromptError(f"{source} must hold a list of prompts, found a {type(items).__name__}")
    return [_prompt(source, number, item) for number, item in enumerate(items, start=1)]


def captions_of(files: Sequence[Path], path: Path) -> list[str]:
    """The caption of every image, in the images' order.

    .txt: one a line, in the order of the images (numbers in file names count as numbers). .csv,
    .tsv, .json and .jsonl: `image` (or `file`: name, with or without its ending) and `caption` (or
    `prompt`, `text`) by name; a .json may also be {name: caption}, or a list of texts in the
    images' order. Raises PromptError where a count or a name does not match, or a caption is empty,
    DecoderError where the file cannot be read.
    """
    items = read_items(path, "caption", (*READERS, ".jsonl"), "set captions=FILE")
    if isinstance(items, dict) and all(isinstance(caption, str) for caption in items.values()):
        items = [{"image": name, "caption": caption} for name, caption in items.items()]
    if not isinstance(items, list):
        raise PromptError(
            f"{path} must hold a list, or a mapping of image names to captions; an official "
            "annotation file has several captions an image: choose one for each"
        )
    if all(isinstance(item, str) for item in items):
        captions = [one_line(item) for item in items]
        if len(captions) != len(files):
            raise PromptError(
                f"{path} has {len(captions)} captions for {len(files)} images; captions without "
                f"names must be one an image, in the order {files[0].name}, {files[1].name}, ..."
            )
    else:
        rows = [_row(path, i, item, "like the others") for i, item in enumerate(items, 1)]
        wanted = (IMAGE_COLUMNS, COLUMNS)
        pairs = [
            [one_line(_text(path, i, row, c)) for c in wanted] for i, row in enumerate(rows, 1)
        ]
        captions = _by_name(files, pairs, path)
    for file, caption in zip(files, captions, strict=True):
        if not caption:
            raise PromptError(f"{path}: the caption of {file.name} is empty")
        require_readable(caption, f"{path}: the caption of {file.name}")
    return captions


def write_captions(folder: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """captions.json, {picture's name: prompt}, in every folder of pictures. rows: `image`, a path
    below `folder` or "", and `prompt`."""
    by_folder: dict[Path, dict[str, str]] = {}
    for row in rows:
        if row["image"]:
            picture = folder / row["image"]
            by_folder.setdefault(picture.parent, {})[picture.name] = row["prompt"]
    for place, captions in by_folder.items():
        write_text(place / CAPTIONS, json.dumps(captions, indent=0, ensure_ascii=False))


def _row(path: Path, number: int, item: Any, wanted: str) -> dict[str, Any]:
    """A list item with its keys in lower case. number: its place, from 1."""
    if not isinstance(item, Mapping):
        raise PromptError(f"{path}: item {number} must be a mapping {wanted}, found {brief(item)}")
    return {str(key).lower(): value for key, value in item.items()}


def _text(path: Path, number: int, row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The text of the first of these columns that a row has."""
    column = next((name for name in names if name in row), None)
    if column is None:
        raise PromptError(f"{path}: no column {', '.join(names)} among {sorted(row)}")
    text: str = validate(f"{path}: `{column}` of item {number}", row[column], str)
    return text


def _prompt(source: Path, number: int, item: Any) -> Prompt:
    """One prompt of a line, a row or a list item."""
    if isinstance(item, str):
        return Prompt(str(number), item)
    row = _row(source, number, item, "or a text")
    text = _text(source, number, row, COLUMNS)
    names = [
        validate(f"{source}: the {key} of item {number}", row.get(key), str | int | None)
        for key in ("id", "category")
    ]
    name, category = ("" if value is None else one_line(str(value)) for value in names)
    return Prompt(name or str(number), text, category)


def _by_name(files: Sequence[Path], pairs: Sequence[Sequence[str]], path: Path) -> list[str]:
    """Every name must be an image's, every image must be named once."""
    stems = [one_line(file.stem) for file in files]
    times = Counter(stems)  # 2: of a.png and a.jpg
    places = {stem: at for at, stem in enumerate(stems) if times[stem] == 1}
    places |= {one_line(file.name): at for at, file in enumerate(files)}
    captions: dict[int, str] = {}
    strange = []
    for name, caption in pairs:
        place = places.get(name)
        if place is None:
            strange.append(name)
        elif place in captions:
            raise PromptError(f"{path} names {files[place].name} twice; keep one caption an image")
        else:
            captions[place] = caption
    left = [file.name for at, file in enumerate(files) if at not in captions]
    if strange or left:
        raise PromptError(
            f"{path} and {files[0].parent} do not match: "
            f"{_some(left, 'images without a caption')}, "
            f"{_some(strange, 'captions without an image')}"
            + f" ({HIDDEN})"
            * any(name.startswith(".") for name in strange)
        )
    return [captions[at] for at in range(len(files))]


def _some(names: list[str], what: str) -> str:
    shown = f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" if names else ""
    return f"{len(names)} {what}{shown}"
