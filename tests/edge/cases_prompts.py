"""Prompt files, caption files and folders of images that would be misread: what the tests of their
readers (tests/bench: prompts, commands/test_evaluate) do not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.edge.table import Bad

FEATURES = ("features", "study=smoke", "decoders=[ar]", "out={tmp}/o.safetensors")


def _write(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda tmp: (tmp / name).write_bytes(data)


def _prompts(about: str, name: str, content: str | bytes, says: str, kind: str = "file") -> Bad:
    """A file that `features` reads before it loads anything."""
    words = [*FEATURES, f"prompts={kind}", f"prompts.path={{tmp}}/{name}"]
    return Bad(f"prompts: {about}", words, says, _write(name, content))


def _pipe(tmp: Path) -> None:
    os.mkfifo(tmp / "pipe.txt")


def _images(folder: Path, count: int = 3) -> Path:
    """Pictures of one colour each, 0.png, 1.png, ..."""
    from PIL import Image

    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    return folder


def _captions(about: str, name: str, content: str, says: str) -> Bad:
    def prepare(tmp: Path) -> None:
        _images(tmp / "drawn")
        (tmp / name).write_text(content)

    words = ["evaluate", "images={tmp}/drawn", f"captions={{tmp}}/{name}", "metrics=clip"]
    return Bad(f"captions: {about}", words, says, prepare)


def _itself(about: str, other: str, make: Callable[[Path], object]) -> Bad:
    def prepare(tmp: Path) -> None:
        _images(tmp / "drawn")
        make(tmp)

    words = ["evaluate", "images={tmp}/drawn", f"reference={{tmp}}/{other}", "metrics=fid"]
    return Bad(f"evaluate: {about}", words, "same pictures", prepare)


def _copied(tmp: Path) -> None:
    _images(tmp / "copy")


LONG = "a" * 10_001
CASES = [
    _prompts("a header alone", "a.csv", "prompt\n", "has no prompts"),
    _prompts("an empty file", "a.txt", "", "has no prompts"),
    _prompts("only blank lines", "a.txt", "\n \n\u2028\n", "has no prompts"),
    _prompts("UTF-16", "a.txt", "a cat\n".encode("utf-16"), "not UTF-8"),
    _prompts("nested JSON", "a.json", "[" * 100_000, "nested too deep"),
    _prompts("a surrogate as id", "a.json", '[{"prompt": "a", "id": "\\udc80"}]', "printable"),
    _prompts("half a surrogate pair", "a.json", '["a \\ud83d cat"]', "control characters"),
    _prompts("numbers for prompts", "a.json", '[{"prompt": 3}]', "not a text"),
    _prompts("a caption that is a number", "c.json",
             '{"annotations": [{"image_id": 1, "caption": 3}]}', "COCO", "coco"),
    _prompts("an image_id that is a list", "c.json",
             '{"annotations": [{"image_id": [1], "caption": "a"}]}', "COCO", "coco"),
    _prompts("COCO, nested", "c.json", '{"annotations":' + "[" * 100_000, "nested", "coco"),
    _prompts("Parti without a column", "p.tsv", "Prompt\na\n", "Category", "parti"),
    _prompts("Parti, ragged", "p.tsv", "Prompt\tCategory\na\n", "the header 2", "parti"),
    _prompts("features that are text", "f.safetensors", "<html></html>", "HTML", "features"),
    Bad("prompts: a named pipe", [*FEATURES, "prompts=file", "prompts.path={tmp}/pipe.txt"],
        "named pipe", _pipe),
    Bad("prompts: a device", [*FEATURES, "prompts=coco", "prompts.path=/dev/zero"], "device"),
    Bad("prompts: a name that is too long",
        [*FEATURES, "prompts=file", f"prompts.path={{tmp}}/{'a' * 300}.txt"], "too long a name"),
    Bad("prompts: a folder of that name",
        [*FEATURES, "prompts=file", "prompts.path={tmp}/p.txt"], "folder",
        lambda tmp: (tmp / "p.txt").mkdir()),
    _captions("a caption of 10,001", "c.txt", f"a\n{LONG}\nb\n", "10001 characters"),
    _captions("a number of 5,000 digits", "c.json", "[" + "1" * 5000 + "]", "too large"),
    _itself("the folder itself", "drawn", lambda tmp: None),
    _itself("a link to itself", "link", lambda tmp: (tmp / "link").symlink_to(tmp / "drawn")),
    _itself("a copy of itself", "copy", _copied),
]  # fmt: skip
