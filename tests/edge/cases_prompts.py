"""Prompt files, caption files and folders of images that would be misread: what the tests of their
readers (tests/bench: prompts, commands/test_evaluate) do not have."""

import os
from pathlib import Path
from typing import Any

from tests.edge.table import Bad

READ = ("run", "study=smoke", "decoders=[ar]", "run_dir={tmp}/run")
LONG = "a" * 10_001


def _prompts(about: str, path: str, says: str, kind: str = "file", make: Any = None) -> Bad:
    """A prompt file of a study."""
    words = [*READ, f"prompts={kind}", f"prompts.path={path}"]
    return Bad(f"prompts: {about}", words, says, make)


def _captions(about: str, name: str, content: str, says: str) -> Bad:
    """Of three pictures of one colour each, 0.png, 1.png and 2.png."""

    def prepare(tmp: Path) -> None:
        from PIL import Image

        (tmp / "drawn").mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp / "drawn" / f"{number}.png")
        (tmp / name).write_text(content)

    words = ["evaluate", "images={tmp}/drawn", f"captions={{tmp}}/{name}", "metrics=clip"]
    return Bad(f"captions: {about}", words, says, prepare)


CASES = [
    _prompts("features that are text", "{tmp}/f.safetensors", "HTML", "features",
             lambda tmp: (tmp / "f.safetensors").write_text("<html></html>")),
    _prompts("a device", "/dev/zero", "device", "coco"),
    _prompts("a pipe", "{tmp}/a.txt", "named pipe", make=lambda tmp: os.mkfifo(tmp / "a.txt")),
    _captions("a caption of 10,001", "c.txt", f"a\n{LONG}\nb\n", "10001 characters"),
]  # fmt: skip
