"""The sources of prompts: embedded scenes, ImageNet classes, MS-COCO, your own file. And the
captions of a folder of images, read from a file and matched to the images by name or by order.

Files: .txt holds one a line; .csv and .tsv are tables; .json is a list; captions may be .jsonl too.
Why strict: a score of 5,000 images with shifted captions looks like a bad model. Counts and names
must agree; to draw fewer images set `limit=`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

from bench.errors import ConfigError, PromptError
from bench.prompts import Prompt, RepeatingPrompts
from decoders.files import (
    HIDDEN_FILE_HINT,
    one_line,
    parse_json,
    read_items,
    read_text,
    require_readable,
)
from decoders.kinds import Amount, Count, Seed, validate

TEXT_COLUMNS = ("prompt", "caption", "text")
IMAGE_COLUMNS = ("image", "file", "file_name")
PROMPT_ENDINGS = (".txt", ".csv", ".tsv", ".json")
PATH_HINT = "set prompts.path="
CAPTIONS_FILE = "captions.json"  # of the pictures of a run


def scenes(count: int, split: str = "bench", seed: Seed = 0) -> list[Prompt]:
    """The first `count` distinct captions of a split of the embedded scenes, held out from training
    (a caption that comes again would be the same image). The category says how many objects."""
    from decoders.tiny.scenes import scene_captions

    by_text: dict[str, Prompt] = {}
    start = 0
    while len(by_text) < count:
        indices = range(start, start + count)
        for index, (text, spec) in zip(indices, scene_captions(split, indices, seed), strict=True):
            category = "one object" if len(spec.objects) == 1 else "two objects"
            by_text.setdefault(text, Prompt(f"{split}-{seed}-{index:05d}", text, category))
        start += count
    return list(by_text.values())


def classes(
    count: int | None, classes: Count = 1000, only: Sequence[Amount] | None = None
) -> list[Prompt]:
    """The ImageNet classes 0, 1, ..., or the chosen ones (`only`, in its order), for
    class-conditional models (LlamaGen 2406.06525); the prompt is the number. Raises ConfigError."""
    chosen = range(classes) if only is None else only
    if beyond := [number for number in chosen if number >= classes]:
        raise ConfigError(
            f"prompts.only must list class numbers from 0 to {classes - 1}, found {beyond[0]}"
        )
    return [Prompt(f"class-{number:04d}", str(number)) for number in chosen]


def coco(
    count: int | None, path: str, caption: Literal["longest", "first"] = "longest"
) -> RepeatingPrompts:
    """MS-COCO captions, one an image, from an official captions_*.json of 2017 or 2014 (METHODS 5),
    in the order of the images' first annotations; the id of a prompt is the image's. The longest
    caption (the first of equally long ones) of captions_val2017.json is the papers' protocol. Six
    of the 5,000 repeat another; they are kept, because the protocol counts images. A list of
    captions, as the papers' code keeps them, is read too: the id is then the index in it. Raises
    PromptError, DecoderError."""
    content = parse_json(read_text(Path(path), PATH_HINT), path)
    if isinstance(content, list) and content and all(isinstance(text, str) for text in content):
        captions = {str(number): text for number, text in enumerate(content)}
        return RepeatingPrompts(Prompt(*pair) for pair in captions.items())
    rows = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict)
        and isinstance(row.get("caption"), str)
        and isinstance(row.get("image_id"), (int, str))
        and not isinstance(row["image_id"], bool)
        for row in rows
    ):
        raise PromptError(
            f"{path} is not an official COCO caption file: expected a key `annotations` with "
            "image_id and caption in each item, or a list of captions; other files are read with "
            "prompts=file"
        )
    captions = {}
    for row in rows:
        image, text = str(row["image_id"]), row["caption"]
        if image not in captions or (caption == "longest" and len(text) > len(captions[image])):
            captions[image] = text
    return RepeatingPrompts(Prompt(*pair) for pair in captions.items())


def file(count: int | None, path: str, quotes: bool = True) -> list[Prompt]:
    """The prompts of a file. Tables and lists of mappings need a key `prompt` (or `caption`,
    `text`) and may have `id` and `category`. Blank lines at the end of a .txt are ignored, others
    are empty prompts. quotes: see `read_items`. Raises PromptError, DecoderError."""
    items = read_items(Path(path), "prompt", PROMPT_ENDINGS, PATH_HINT, quotes)
    if not isinstance(items, list):
        raise PromptError(f"{path} must hold a list of prompts, found a {type(items).__name__}")
    prompts = []
    for number, item in enumerate(items, start=1):
        if isinstance(item, str):
            prompts.append(Prompt(str(number), item))
            continue
        row = _row(path, number, item, "or a text")
        text = _text(path, number, row, TEXT_COLUMNS)
        named = [
            validate(f"{path}: the {key} of item {number}", row.get(key), str | int | None)
            for key in ("id", "category")
        ]
        name, category = ("" if value is None else one_line(str(value)) for value in named)
        prompts.append(Prompt(name or str(number), text, category))
    return prompts


def geneval(count: int | None, path: str) -> RepeatingPrompts:
    """GenEval's evaluation_metadata.jsonl (2310.11513): a `prompt` and a `tag`, its category, per
    line, whose number, from 0, is the id, as in GenEval's folders of images. Raises PromptError,
    DecoderError."""
    items = read_items(Path(path), "prompt", (".jsonl",), PATH_HINT)
    prompts = RepeatingPrompts()
    for number, item in enumerate(items):
        row = _row(path, number + 1, item, "with `prompt` and `tag`")
        text, tag = (_text(path, number + 1, row, (key,)) for key in ("prompt", "tag"))
        prompts.append(Prompt(f"{number:05d}", text, one_line(tag)))
    return prompts


def dpg(count: int | None, path: str) -> RepeatingPrompts:
    """DPG-Bench's folder of prompts (2403.05135): a .txt per prompt, whose name is the id, in the
    order of names. Raises PromptError, DecoderError."""
    files = sorted(Path(path).glob("*.txt"), key=lambda file: file.name)
    if not files:
        raise PromptError(
            f"{path} holds no .txt files; {PATH_HINT}DIR with the folder `prompts` of DPG-Bench, a "
            "file per prompt"
        )
    return RepeatingPrompts(Prompt(f.stem, read_text(f, PATH_HINT).strip()) for f in files)


def captions_of(files: Sequence[Path], path: Path, part: bool = False) -> list[str]:
    """The caption of every image, in the images' order. .txt: one a line, in the order of the
    images (numbers in file names count as numbers). .csv, .tsv, .json and .jsonl: `image` (or
    `file`: name, with or without its ending) and `caption` (or `prompt`, `text`) by name; a .json
    may also be {name: caption}, or a list of texts in the images' order. Raises PromptError where a
    count or a name does not match, or a caption is empty, DecoderError where the file cannot be
    read. part: captions by name may be of more images."""
    items = read_items(path, "caption", (*PROMPT_ENDINGS, ".jsonl"), "set captions=FILE")
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
        columns = (IMAGE_COLUMNS, TEXT_COLUMNS)
        pairs = [
            [one_line(_text(path, i, row, names)) for names in columns]
            for i, row in enumerate(rows, 1)
        ]
        captions = _by_name(files, pairs, path, part)
    for image, caption in zip(files, captions, strict=True):
        if not caption:
            raise PromptError(f"{path}: the caption of {image.name} is empty")
        require_readable(caption, f"{path}: the caption of {image.name}")
    return captions


def _row(path: Path | str, number: int, item: Any, wanted: str) -> dict[str, Any]:
    """A list item with its keys in lower case. number: from 1."""
    if not isinstance(item, Mapping):
        raise PromptError(f"{path}: item {number} must be a mapping {wanted}, found {brief(item)}")
    return {str(key).lower(): value for key, value in item.items()}


def _text(path: Path | str, number: int, row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The text of the first of these columns that a row has."""
    column = next((name for name in names if name in row), None)
    if column is None:
        raise PromptError(f"{path}: no column {', '.join(names)} among {sorted(row)}")
    text: str = validate(f"{path}: `{column}` of item {number}", row[column], str)
    return text


def _by_name(
    files: Sequence[Path], pairs: Sequence[Sequence[str]], path: Path, part: bool
) -> list[str]:
    """Every image must be named once, and every name, unless `part`, must be an image's."""
    stems = [one_line(file.stem) for file in files]
    times = Counter(stems)  # 2: of a.png and a.jpg
    numbers = {stem: at for at, stem in enumerate(stems) if times[stem] == 1}
    numbers |= {one_line(file.name): at for at, file in enumerate(files)}
    captions: dict[int, str] = {}
    strange = []
    for name, caption in pairs:
        at = numbers.get(name)
        if at is None:
            strange += [] if part else [name]
        elif at in captions:
            raise PromptError(f"{path} names {files[at].name} twice; keep one caption an image")
        else:
            captions[at] = caption
    left = [file.name for at, file in enumerate(files) if at not in captions]
    if strange or left:
        counts = []
        kinds = {"images without a caption": left, "captions without an image": strange}
        for what, names in kinds.items():
            shown = f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" if names else ""
            counts.append(f"{len(names)} {what}{shown}")
        hint = f" ({HIDDEN_FILE_HINT})" * any(name.startswith(".") for name in strange)
        hint += "; part=true takes captions of more images" * (not left)
        raise PromptError(f"{path} and {files[0].parent} do not match: {', '.join(counts)}{hint}")
    return [captions[at] for at in range(len(files))]
