"""Captions of a folder of images: read from a file, and matched to the images by name or by order;
written beside the pictures of a run, so that `evaluate` takes those too.

Why strict: a score of 5,000 images with shifted captions looks like a bad model. Counts and names
must agree; whoever wants fewer images says so (`limit=`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from bench.errors import PromptError, unknown
from bench.prompts.file import COLUMNS, read_json, read_table, read_text
from bench.records.schema import write_text
from decoders.text_files import lines_of, one_line, parse_json, require_size, said_as

IMAGE_COLUMNS = ("image", "file", "file_name")
OWN_FILE = "captions.json"  # beside the pictures of a run
READERS = (".txt", ".csv", ".tsv", ".json", ".jsonl")


def captions_of(files: Sequence[Path], path: Path) -> list[str]:
    """The caption of every image, in the images' order.

    .txt: one a line, in the order of the images (numbers in file names count as numbers). .csv,
    .tsv, .json and .jsonl: `image` (or `file`: name, with or without its ending) and `caption` (or
    `prompt`, `text`) by name; a .json may also be {name: caption}, or a list of texts in the
    images' order. Raises PromptError where a count or a name does not match, or a caption is empty.
    """
    items = _items(path)
    if all(isinstance(item, str) for item in items):
        found = _by_order(files, [one_line(item) for item in items], path)
    else:
        found = _by_name(files, [_pair(path, i, item) for i, item in enumerate(items, 1)], path)
    for file, caption in zip(files, found, strict=True):
        if not caption:
            raise PromptError(f"{path}: the caption of {file.name} is empty")
        with said_as(PromptError):
            require_size(caption, f"{path}: the caption of {file.name}")
    return found


def write_captions(folder: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """captions.json, {picture's name: prompt}, in every folder of pictures. rows: `image`, a path
    below `folder` or "", and `prompt`."""
    found: dict[Path, dict[str, str]] = {}
    for row in rows:
        if row["image"]:
            picture = folder / row["image"]
            found.setdefault(picture.parent, {})[picture.name] = row["prompt"]
    for place, captions in found.items():
        write_text(place / OWN_FILE, json.dumps(captions, indent=0, ensure_ascii=False))


def _items(path: Path) -> list[Any]:
    """Texts, or mappings with a name and a caption."""
    kind = path.suffix.lower()
    if kind not in READERS and not path.is_dir():
        raise PromptError(unknown("kind of caption file", kind or path.name, READERS))
    text = read_text(path, "set captions=FILE")
    if kind == ".txt":
        return lines_of(text)
    if kind == ".jsonl":
        return [_line(path, i, line) for i, line in enumerate(lines_of(text), 1) if line.strip()]
    if kind in (".csv", ".tsv"):
        return read_table(path, text)
    found = read_json(path, text)
    if isinstance(found, dict) and all(isinstance(caption, str) for caption in found.values()):
        return [{"image": name, "caption": caption} for name, caption in found.items()]
    if not isinstance(found, list):
        raise PromptError(
            f"{path} must hold a list, or a mapping of image names to captions; an official "
            "annotation file has several captions an image: choose one for each"
        )
    return found


def _line(path: Path, number: int, line: str) -> Any:
    with said_as(PromptError):
        return parse_json(line, f"{path}, line {number},")


def _pair(path: Path, number: int, item: Any) -> tuple[str, str]:
    """(image name, caption) of a row; numbers are 1-based."""
    if not isinstance(item, Mapping):
        raise PromptError(
            f"{path}: item {number} must be a mapping like the others, found {brief(item)}"
        )
    lower = {str(k).lower(): v for k, v in item.items()}
    values = []
    for names in (IMAGE_COLUMNS, COLUMNS):
        column = next((name for name in names if name in lower), None)
        if column is None:
            raise PromptError(f"{path}: no column {', '.join(names)} among {sorted(lower)}")
        if not isinstance(lower[column], str):
            raise PromptError(
                f"{path}: `{column}` of item {number} is {brief(lower[column])}, not a text"
            )
        values.append(one_line(lower[column]))
    return values[0], values[1]


def _by_order(files: Sequence[Path], texts: list[str], path: Path) -> list[str]:
    if len(texts) != len(files):
        raise PromptError(
            f"{path} has {len(texts)} captions for {len(files)} images; captions without names "
            f"must be one an image, in the order {files[0].name}, {files[1].name}, ..."
        )
    return texts


def _by_name(files: Sequence[Path], pairs: list[tuple[str, str]], path: Path) -> list[str]:
    """Every name must be an image's, every image must be named once."""
    known = {file.name: place for place, file in enumerate(files)}
    stems: dict[str, int] = {}
    for place, file in enumerate(files):
        stems[file.stem] = -1 if file.stem in stems else place  # -1: of two images, a.png and a.jpg
    found: list[str | None] = [None] * len(files)
    strange = []
    for name, caption in pairs:
        place = known.get(name, stems.get(name, -1))
        if place < 0:
            strange.append(name)
        elif found[place] is not None:
            raise PromptError(f"{path} names {files[place].name} twice; keep one caption an image")
        else:
            found[place] = caption
    left = [file.name for file, caption in zip(files, found, strict=True) if caption is None]
    if strange or left:
        raise PromptError(
            f"{path} and {files[0].parent} do not match: "
            f"{_some(left, 'images without a caption')}, "
            f"{_some(strange, 'captions without an image')}"
        )
    return [caption for caption in found if caption is not None]


def _some(names: list[str], what: str) -> str:
    shown = f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" if names else ""
    return f"{len(names)} {what}{shown}"
