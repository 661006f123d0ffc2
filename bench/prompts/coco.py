"""MS-COCO 2017 validation captions: the longest caption of each image (METHODS 5).

Images come in the order of their first annotation and the first of equally long captions is taken:
this gives the released code's list. Six captions occur twice; they are kept, because the protocol
counts images (their decoded images are equal).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.errors import PromptError
from bench.prompts import Prompt, check
from bench.prompts.file import read_json, read_text


def load(count: int, path: str) -> list[Prompt]:
    """The first `count` prompts of the official captions_val2017.json. Raises PromptError."""
    source = Path(path)
    found = read_json(source, read_text(source))
    captions: dict[str, str] = {}
    for annotation in _annotations(source, found):
        image, caption = str(annotation["image_id"]), str(annotation["caption"])
        if len(caption) > len(captions.get(image, "")):
            captions[image] = caption
    prompts = [Prompt(image, " ".join(text.split())) for image, text in captions.items()]
    return check(prompts, str(source), count, duplicates=True)


def _annotations(source: Path, found: Any) -> list[dict[str, Any]]:
    """The annotations of an official file, or PromptError."""
    rows = found.get("annotations") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(
        isinstance(r, dict) and {"image_id", "caption"} <= set(r) for r in rows
    ):
        raise PromptError(
            f"{source} is not an official COCO caption file: expected a key `annotations` with "
            "image_id and caption in each item; lists of captions are read with prompts=file"
        )
    return rows
