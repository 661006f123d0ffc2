"""Words of a command line that mean nothing, and what a hurried newcomer gets wrong."""

import json
from pathlib import Path

from tests.edge.table import Bad

SMOKE = ("study=smoke", "run_dir={tmp}/run")
FILE = ("prompts=file", "prompts.path={tmp}/p.txt")


def file_of(content: bytes):
    return lambda tmp: (tmp / "p.txt").write_bytes(content)


def parts_of_two_trainings(folder: Path) -> None:
    """A card whose target was trained with another tokenizer than the one that it describes."""
    card = {
        "vq": {"sha256": "a" * 64, "trained_with": {}},
        "text": {"sha256": "b" * 64, "trained_with": {"vq": "0" * 64, "target": "c" * 64}},
        "target": {"sha256": "c" * 64, "trained_with": {"vq": "0" * 64, "text": "b" * 64}},
    }
    (folder / "weights").mkdir()
    (folder / "weights" / "models.json").write_text(json.dumps(card))


FROM_PARTS = ["check", "study=smoke", "decoders=[ar]", "model.checkpoint={tmp}/weights"]
NOWHERE = "hydra.searchpath=[file://{tmp}/nowhere]"
CASES = [
    Bad("an empty prompt file", ["run", *SMOKE, *FILE], "p.txt", file_of(b"")),
    Bad("run of too few prompts", ["run", *SMOKE, *FILE], "1 prompts", file_of(b"a red ring\n")),
    Bad("a search path that is not there", ["run", *SMOKE, NOWHERE], "nowhere is no folder"),
    Bad("a checkpoint that is not there", ["run", *SMOKE, "model.checkpoint=ck"], "no such folder"),
    Bad("run_dir with a newline", ["run", "study=smoke", 'run_dir="a\nb"'], "printable"),
    Bad("tiny over the shipped weights", ["tiny", "vq", "minutes=0.05"], "overwrite=true"),
    Bad("tiny clip over the shipped weights", ["tiny", "clip", "steps=1"], "weights=DIR"),
    Bad("tiny: overwrite is no word", ["tiny", "vq", "overwrite=yes"], "overwrite=yes"),
    Bad("parts of two trainings", FROM_PARTS, "do not belong together", parts_of_two_trainings),
    Bad("help of no command", ["help", "evaluat"], "'evaluate'"),
    Bad("no command but --help", ["evaluat", "--help"], "'evaluate'"),
    Bad("compare without a run", ["compare"], "finished here: (none)"),
]
