"""What a hurried newcomer gets wrong."""

from __future__ import annotations

from pathlib import Path

from tests.edge.table import Bad

SMOKE = ("study=smoke", "run_dir={tmp}/run")
FILE = ("prompts=file", "prompts.path={tmp}/p.txt")


def file_of(content: bytes):
    return lambda tmp: (tmp / "p.txt").write_bytes(content)


def nothing(tmp: Path) -> None:
    """No file is needed."""


CASES = [
    Bad("plan of an empty prompt file", ["plan", *SMOKE, *FILE], "p.txt", file_of(b"")),
    Bad("plan of prompts that are no text", ["plan", *SMOKE, *FILE], "p.txt", file_of(b"\xff\xfe")),
    Bad("run of too few prompts", ["run", *SMOKE, *FILE], "1 prompts", file_of(b"a red ring\n")),
    Bad(
        "a search path that is not there",
        ["run", *SMOKE, "hydra.searchpath=[file://{tmp}/nowhere]"],
        "nowhere is no folder",
        nothing,
    ),
    Bad(
        "a checkpoint that is not there",
        ["run", *SMOKE, "model.checkpoint=ck"],
        "no such folder",
        nothing,
    ),
    Bad(
        "a study and a run folder at once",
        ["compare", "study=smoke", "run_dir={tmp}"],
        "keep one of them",
        nothing,
    ),
    Bad("run_dir with a newline", ["plan", "study=smoke", 'run_dir="a\nb"'], "printable", nothing),
]
