"""`python -m bench profile`: where a decoding step's time goes, by phase, by part and by operator.

Why: a decoder that is slower than its matrix products is so for reasons that no total shows. Every
decoder of a study decodes an image to warm up, one that its own stopwatch times, and one of which a
few steps in the middle are recorded by torch.profiler. Recording slows a step down, so its figures
are shares and counts; the milliseconds to believe are those of the image that was not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bench.config.own_settings import own_settings
from bench.console import complain, progress, say
from bench.errors import ConfigError
from bench.os_errors import ready_folder
from decoders.kinds import Count, Within, require

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig
    from bench.measure.device import Provenance
    from bench.profile.record import Profiled

FOLDER = "profile"


@dataclass(frozen=True)
class ProfileSettings:
    """`profile.*`. steps: recorded steps of an image; top: operators shown a decoder (the file has
    all); batch: images decoded at once."""

    steps: Annotated[int, Within(1, 10**6)] = 16
    top: Count = 12
    batch: Annotated[int, Within(1, 2**20)] = 1

    def __post_init__(self) -> None:
        require(self, "profile.", ConfigError)


def cmd_profile(words: Sequence[str]) -> int:
    """Records every decoder of a study; prints the tables, writes <run_dir>/profile/: a Chrome
    trace a decoder, phases.csv, parts.csv, operators.csv and summary.csv.

    Settings are those of a study and profile.NAME=. 1 where a decoder failed.
    """
    from bench.config.compose import compose_study
    from bench.profile.write import save, terminal

    settings, rest = own_settings(ProfileSettings, "profile", words)
    config = compose_study(rest)
    folder = Path(config.run_dir) / FOLDER
    ready_folder(folder)
    found, made = record(config, settings, folder)
    say(terminal(config, found, settings.top))
    for path in save(config, made, found, folder):
        say(f"saved: {path}")
    failed = [one for one in found if one.error]
    for one in failed:
        complain(f"{one.decoder} failed: {one.error}")
    return 1 if failed else 0


def record(
    config: StudyConfig, settings: ProfileSettings, folder: Path
) -> tuple[list[Profiled], Provenance]:
    """The profiles of a study's decoders; the traces are written to `folder`."""
    from bench.profile.record import profile_cell
    from bench.run.schedule import cells
    from bench.run.session import frozen_heap, opened

    own = opened(config, settings.batch, (settings.batch,))
    texts = [prompt.text for prompt in own.prompts]
    every = cells(config, own.model.sampling)
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    with frozen_heap(), progress(len(every), "profile", unit="decoder") as bar:
        for cell in every:
            bar.set_postfix_str(cell.entry.name)
            found.append(profile_cell(cell, own.model, texts, config.seed, settings.steps, folder))
            bar.update()
    return found, own.made
