"""Random stand-ins of all that a study needs, and the settings that name them.

    python -m tests.stand_ins DIR study=lantern_table [setting=value ...]

They have the released layouts and the study's own codes, grid and file names, and are small in all
else: a laptop goes through the whole study, metrics included. What it then measures means nothing.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.commands.fetch import is_embedded, metric_weights
from bench.config.compose import compose_study
from bench.console import say
from bench.errors import ConfigError, FolderError
from bench.files import write_text

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig

IMAGES = 8  # enough for every metric
FEW = (
    "backend=cpu", "backend.threads=1", "latency.prompts=2", "latency.blocks=1",
    "latency.warmup_max=1", f"quality.images={IMAGES}", f"quality.batch={IMAGES}",
    "quality.pairs=8", "gate=false",
)  # fmt: skip


def make(config: StudyConfig, folder: Path) -> list[str]:
    """Writes the stand-ins; returns the words of a dry run. Raises ConfigError where the model has
    none, FolderError where the folder is not empty."""
    from tests.checkpoints import STAND_INS, stand_in

    if is_embedded(config.model):
        raise ConfigError(
            f"the study {config.name} runs on an embedded model, which is here: run it as it is"
        )
    if config.model.target not in STAND_INS:
        raise ConfigError(
            f"there is no stand-in for {config.model.name} ({config.model.target}); there are some "
            f"for {', '.join(sorted(STAND_INS))}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} is there already and not empty; choose another folder")
    captions = _captions()
    words = sorted({word for text in captions for word in _words(text)})
    settings = stand_in(config.model.target, folder, config.model.kwargs, words)
    model = [f"model.{key}={value}" for key, value in settings.items()]
    return [*FEW, *model, *_prompts(config, folder, captions), *_metrics(config, folder)]


def _captions() -> list[str]:
    from bench.prompts.sources import scenes

    return [prompt.text for prompt in scenes(IMAGES)]


def _words(text: str) -> Sequence[str]:
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


def _prompts(config: StudyConfig, folder: Path, captions: Sequence[str]) -> list[str]:
    """A caption file where the study reads one."""
    if "path" not in config.prompts.kwargs:
        return []
    path = folder / "captions.json"
    if config.prompts.name == "coco":
        rows = [{"image_id": n, "caption": text} for n, text in enumerate(captions)]
        write_text(path, json.dumps({"annotations": rows}, indent=1))
        return [f"prompts.path={path}"]
    write_text(path, json.dumps(captions, indent=1))
    return ["prompts=file", f"prompts.path={path}"]


def _metrics(config: StudyConfig, folder: Path) -> list[str]:
    """Networks and reference pictures where the study's metric reads them."""
    keys, _ = metric_weights(config)
    if not keys:
        return []
    from tests.metrics.small_weights import write_all, write_scenes

    write_all(folder / "metrics", keys)
    write_scenes(folder / "reference", "reference", IMAGES)  # real ones are there
    named = [f"metric.weights.{key}=null" for key in keys]
    positions = {
        "weights.folder": folder / "metrics",
        "reference": folder / "reference",
        "cache_dir": folder / "cache",
    }
    return [*named, *(f"metric.{key}={value}" for key, value in positions.items())]


def main(words: Sequence[str]) -> None:
    """Writes them, and prints the command of a dry run."""
    folder, rest = Path(words[0]), list(words[1:])
    config = compose_study(rest)
    run = [f"run_dir={folder / 'run'}"] if not any(w.startswith("run_dir=") for w in rest) else []
    line = shlex.join(["python", "-m", "bench", "run", *rest, *make(config, folder), *run])
    say(f"stand-ins of what {config.name} needs are in {folder}: random weights, no figures.")
    say(f"a dry run of the study:\n\n{line}")


if __name__ == "__main__":
    main(sys.argv[1:])
