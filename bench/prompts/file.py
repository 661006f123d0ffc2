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

from bench.data.errors import PromptError, unknown
from bench.data.files import write_text
from bench.prompts import Prompt, check, prompt_set
from decoders import text_files
from decoders.text_files import one_line, said_as

COLUMNS = ("prompt", "caption", "text")
IMAGE_COLUMNS = ("image", "file", "file_name")
NAMES = (str, int, type(None))  # what an id or a category may be
READERS = (".txt", ".csv", ".tsv", ".json")
OWN_FILE = "captions.json"  # of the pictures of a run


@prompt_set
def load(count: int | None, path: str) -> list[Prompt]:
    """The first `count` prompts of a file. Tables and lists of mappings need a key `prompt` (or
    `caption`, `text`) and may have `id` and `category`. Blank lines at the end of a .txt are
    ignored, others are empty prompts; a line break inside a prompt is a space. PromptError."""
    source = Path(path)
    items = _items(source, "prompt", READERS, "set prompts.path=")
    if not isinstance(items, list):
        raise PromptError(f"{source} must hold a list of prompts, found a {type(items).__name__}")
    prompts = [_prompt(source, number, item) for number, item in enumerate(items, start=1)]
    return check(prompts, str(source), count)


def captions_of(files: Sequence[Path], path: Path) -> list[str]:
    """The caption of every image, in the images' order.

    .txt: one a line, in the order of the images (numbers in file names count as numbers). .csv,
    .tsv, .json and .jsonl: `image` (or `file`: name, with or without its ending) and `caption` (or
    `prompt`, `text`) by name; a .json may also be {name: caption}, or a list of texts in the
    images' order. Raises PromptError where a count or a name does not match, or a caption is empty.
    """
    items = _items(path, "caption", (*READERS, ".jsonl"), "set captions=FILE")
    if isinstance(items, dict) and all(isinstance(caption, str) for caption in items.values()):
        items = [{"image": name, "caption": caption} for name, caption in items.items()]
    if not isinstance(items, list):
        raise PromptError(
            f"{path} must hold a list, or a mapping of image names to captions; an official "
            "annotation file has several captions an image: choose one for each"
        )
    if all(isinstance(item, str) for item in items):
        found = [one_line(item) for item in items]
        if len(found) != len(files):
            raise PromptError(
                f"{path} has {len(found)} captions for {len(files)} images; captions without names "
                f"must be one an image, in the order {files[0].name}, {files[1].name}, ..."
            )
    else:
        found = _by_name(files, [_pair(path, i, item) for i, item in enumerate(items, 1)], path)
    for file, caption in zip(files, found, strict=True):
        if not caption:
            raise PromptError(f"{path}: the caption of {file.name} is empty")
        with said_as(PromptError):
            text_files.require_size(caption, f"{path}: the caption of {file.name}")
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


def read_json(path: Path, hint: str = "set prompts.path=") -> Any:
    """The JSON value of a file. hint: what to do where there is none. Raises PromptError."""
    with said_as(PromptError):
        return text_files.parse_json(text_files.read_text(path, hint), str(path))


def read_table(
    path: Path, quotes: bool = True, hint: str = "set prompts.path="
) -> list[dict[str, str]]:
    """The rows of a table; all but .csv are separated by tabs. Raises PromptError."""
    with said_as(PromptError):
        delimiter = "," if path.suffix.lower() == ".csv" else "\t"
        return text_files.parse_table(
            text_files.read_text(path, hint), delimiter, str(path), quotes
        )


def _items(path: Path, what: str, kinds: Sequence[str], hint: str) -> Any:
    """Texts, or mappings of columns; of a .json whatever it holds."""
    kind = path.suffix.lower()
    if kind not in kinds and not path.is_dir():
        raise PromptError(unknown(f"kind of {what} file", path.suffix or path.name, kinds))
    if kind == ".json":
        return read_json(path, hint)
    if kind in (".csv", ".tsv"):
        return read_table(path, hint=hint)
    with said_as(PromptError):
        lines = text_files.lines_of(text_files.read_text(path, hint))
        if kind != ".jsonl":
            return lines
        numbered = enumerate(lines, 1)
        return [text_files.parse_json(x, f"{path}, line {i},") for i, x in numbered if x.strip()]


def _fields(path: Path, number: int, item: Any, wanted: Sequence[Sequence[str]]) -> list[str]:
    """Of a row or a list item the text of one of each of the `wanted` columns; numbers are
    1-based."""
    lower = _lower(path, number, item)
    values = []
    for names in wanted:
        column = next((name for name in names if name in lower), None)
        if column is None:
            raise PromptError(f"{path}: no column {', '.join(names)} among {sorted(lower)}")
        if not isinstance(lower[column], str):
            raise PromptError(
                f"{path}: `{column}` of item {number} is {brief(lower[column])}, not a text"
            )
        values.append(one_line(lower[column]))
    return values


def _lower(path: Path, number: int, item: Any) -> dict[str, Any]:
    """An item with its keys in lower case."""
    if not isinstance(item, Mapping):
        raise PromptError(f"{path}: item {number} must be a mapping or a text, found {brief(item)}")
    lower = {str(key).lower(): value for key, value in item.items()}
    if len(lower) < len(item):
        raise PromptError(f"{path}: item {number} has a key twice among {sorted(item)}")
    return lower


def _prompt(source: Path, number: int, item: Any) -> Prompt:
    """One prompt of a line, a row or a list item."""
    if isinstance(item, str):
        return Prompt(str(number), one_line(item))
    (text,), lower = _fields(source, number, item, [COLUMNS]), _lower(source, number, item)
    for key in ("id", "category"):
        if not isinstance(lower.get(key), NAMES) or isinstance(lower.get(key), bool):
            raise PromptError(
                f"{source}: the {key} of item {number} must be a text or a whole number, found "
                f"{brief(lower[key])}"
            )
    own, category = (
        "" if lower.get(key) is None else one_line(str(lower[key])) for key in ("id", "category")
    )
    return Prompt(own or str(number), text, category)


def _pair(path: Path, number: int, item: Any) -> tuple[str, str]:
    """(image name, caption) of a row or a list item."""
    if isinstance(item, str):
        raise PromptError(
            f"{path}: item {number} must be a mapping like the others, found {brief(item)}"
        )
    name, caption = _fields(path, number, item, [IMAGE_COLUMNS, COLUMNS])
    return name, caption


def _by_name(files: Sequence[Path], pairs: list[tuple[str, str]], path: Path) -> list[str]:
    """Every name must be an image's, every image must be named once."""
    times = Counter(file.stem for file in files)  # 2: of a.png and a.jpg
    places = {file.stem: at for at, file in enumerate(files) if times[file.stem] == 1}
    places |= {file.name: at for at, file in enumerate(files)}
    found: dict[int, str] = {}
    strange = []
    for name, caption in pairs:
        place = places.get(name)
        if place is None:
            strange.append(name)
        elif place in found:
            raise PromptError(f"{path} names {files[place].name} twice; keep one caption an image")
        else:
            found[place] = caption
    left = [file.name for at, file in enumerate(files) if at not in found]
    if strange or left:
        raise PromptError(
            f"{path} and {files[0].parent} do not match: "
            f"{_some(left, 'images without a caption')}, "
            f"{_some(strange, 'captions without an image')}"
        )
    return [found[at] for at in range(len(files))]


def _some(names: list[str], what: str) -> str:
    shown = f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" if names else ""
    return f"{len(names)} {what}{shown}"
