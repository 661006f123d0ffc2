"""MS-COCO captions, one an image, from the official annotation files of 2017 and 2014 (METHODS 5).

Images come in the order of their first annotation, and the id of a prompt is the image's. The
longest caption (the first of equally long ones) of captions_val2017.json is the papers' protocol.
Six of the 5,000 repeat another; they are kept, because the protocol counts images.

A list of captions, as the papers' code keeps them, is read too: captions_val2017_longest.json, or
for 2014 about 30,000 images, each with its first caption. The id is then the place in the list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from bench.data.errors import PromptError
from bench.prompts import Prompt, PromptSet
from bench.prompts.file import HINT
from decoders.documents import parse_json, read_text


def load(
    count: int | None, path: str, caption: Literal["longest", "first"] = "longest"
) -> PromptSet:
    """The prompts of captions_*.json, or of a list of captions. caption: which caption of an image
    is its prompt. Raises PromptError, DecoderError."""
    source = Path(path)
    content = parse_json(read_text(source, HINT), path)
    if isinstance(content, list) and content and all(isinstance(text, str) for text in content):
        captions = {str(place): text for place, text in enumerate(content)}
    else:
        captions = _one_an_image(_annotations(source, content), caption)
    prompts = [Prompt(image, text) for image, text in captions.items()]
    return PromptSet(prompts, repeats=True)


def _one_an_image(annotations: list[dict[str, Any]], pick: str) -> dict[str, str]:
    """Image id -> its caption."""
    captions: dict[str, str] = {}
    for annotation in annotations:
        image, text = str(annotation["image_id"]), annotation["caption"]
        if image not in captions or (pick == "longest" and len(text) > len(captions[image])):
            captions[image] = text
    return captions


def _annotations(source: Path, content: Any) -> list[dict[str, Any]]:
    """The annotations of an official file, or PromptError."""
    rows = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(map(_is_annotation, rows)):
        raise PromptError(
            f"{source} is not an official COCO caption file: expected a key `annotations` with "
            "image_id and caption in each item, or a list of captions; other files are read with "
            "prompts=file"
        )
    return rows


def _is_annotation(row: Any) -> bool:
    """{"image_id": number or text, "caption": text, ...}"""
    return (
        isinstance(row, dict)
        and isinstance(row.get("caption"), str)
        and isinstance(row.get("image_id"), (int, str))
        and not isinstance(row["image_id"], bool)
    )
