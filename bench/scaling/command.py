"""`python -m bench scaling`: images a second and latency of a study's decoders by batch size.

Why: at batch 1 a decoding step waits for weights and launches, and verifying a tree costs little
more than a code. The larger the batch, the more a step computes, the more a tree costs, and the
longer a batch waits for its slowest row; so speculative gains shrink. A speed-up without its batch
size says nothing about serving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bench.config.own_settings import own_settings, with_study
from bench.console import progress, say
from bench.errors import ConfigError
from bench.os_errors import ready_folder
from decoders.kinds import Amount, Count, Within, require

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig
    from bench.scaling.cells import Cell
    from bench.scaling.write import Scaling

STUDY = "scaling"


@dataclass(frozen=True)
class ScalingSettings:
    """`scaling.*`. A batch size is decoded `repeats` times, or more often where that makes fewer
    than `images` images; warmups: untimed calls before, of every decoder and batch size."""

    batches: list[Annotated[int, Within(1, 2**20)]] = field(default_factory=lambda: [1, 4, 16, 64])
    repeats: Annotated[int, Within(2, 10**6)] = 3
    images: Count = 8
    warmups: Amount = 1

    def __post_init__(self) -> None:
        require(self, "scaling.", ConfigError)
        if not self.batches:
            raise ConfigError("scaling.batches is empty; for example scaling.batches=[1,4,16,64]")
        if len(set(self.batches)) < len(self.batches):
            raise ConfigError(f"scaling.batches names a batch size twice: {self.batches}")

    def calls(self, batch: int) -> int:
        """Timed calls of a batch size."""
        return max(self.repeats, -(-self.images // batch))


def cmd_scaling(words: Sequence[str]) -> int:
    """Times all decoders at all batch sizes in turns; prints the table, writes scaling.csv, .md,
    .svg and .png. Settings are those of a study (default study=scaling) and scaling.NAME=.

    1 where no batch size could be decoded; a cell that failed is a row with its error.
    """
    from bench.config.compose import compose_study
    from bench.scaling.write import save, terminal

    settings, rest = own_settings(ScalingSettings, "scaling", with_study(words, STUDY))
    config = compose_study(rest)
    ready_folder(Path(config.run_dir))
    made = measure(config, settings)
    say(terminal(made))
    for path in save(made, Path(config.run_dir)):
        say(f"saved: {path}")
    return 1 if all(row.error for row in made.rows) else 0


def measure(config: StudyConfig, settings: ScalingSettings) -> Scaling:
    """Every decoder of the study at every batch size. Raises as a study's run does before it
    starts; what a decoder raises is its cell's error."""
    from bench.run.session import frozen_heap, opened
    from bench.scaling.cells import Meter, cells_of, rows_of
    from bench.scaling.write import Scaling

    count = max([*settings.batches, *map(settings.calls, settings.batches)])
    own = opened(config, count, settings.batches)
    cells = cells_of(config, own.model, settings.batches)
    meter = Meter(own.model, [prompt.text for prompt in own.prompts], config.seed)
    calls = sum(settings.warmups + settings.calls(cell.batch) for cell in cells)
    with frozen_heap(), progress(calls, "scaling", unit="call") as bar:
        for cell in cells:
            for _ in range(settings.warmups):
                meter.run(cell, 0, timed=False)
                bar.update()
        for cell, turn in in_turns(cells, settings):
            meter.run(cell, turn)
            bar.update()
    return Scaling(config, own.made, own.model.weights_sha256, rows_of(cells))


def in_turns(cells: Sequence[Cell], settings: ScalingSettings) -> list[tuple[Cell, int]]:
    """(cell, turn) in the order of the clock: all decoders of a batch size one after the other, the
    first one rotating; then the next batch size; and all of it again."""
    found: list[tuple[Cell, int]] = []
    for turn in range(max(map(settings.calls, settings.batches))):
        for batch in settings.batches:
            if turn < settings.calls(batch):
                same = [cell for cell in cells if cell.batch == batch]
                first = turn % len(same)
                found += [(cell, turn) for cell in [*same[first:], *same[:first]]]
    return found
