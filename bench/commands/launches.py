"""`python -m bench launches`: how many kernels a step launches on a GPU, without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from bench.config.own_settings import own_settings
from bench.console import progress, say
from bench.errors import ConfigError
from bench.report.table import Column, figures, filled, terminal
from decoders.kinds import Within, require

COLUMNS = (
    Column("decoder", "decoder"),
    Column("piece", "piece of a step"),
    Column("layer", "a layer", figures(1)),
    Column("rest", "the rest", figures(0)),
    Column("total", "a step", figures(0)),
)
EAGER = "operators of the eager step; views and allocations launch nothing"
COMPILED = "kernels that torch.compile makes of the pieces: what backend=cuda_graph replays"


@dataclass(frozen=True)
class LaunchSettings:
    """`launches.*`. preset: whose size (random weights); compiled: kernels of the compiled pieces
    in place of the eager operators; attention: torch, or one of decoders.kernels."""

    preset: str = "llamagen_xl_256"
    compiled: bool = True
    attention: str = "triton"
    batch: Annotated[int, Within(1, 64)] = 1

    def __post_init__(self) -> None:
        require(self, "launches.", ConfigError)


def cmd_launches(words: Sequence[str]) -> int:
    """Counts the launches of a step of every decoder of a study, on tensors of no memory."""
    from bench.config.compose import compose_study
    from bench.run.schedule import cells
    from decoders.api import Sampling
    from decoders.launches import launches

    settings, rest = own_settings(LaunchSettings, "launches", words)
    config = compose_study(rest)
    every = cells(config, Sampling(cfg=7.5, top_k=1000))
    rows: list[dict[str, Any]] = []
    with progress(len(every), "launches", unit="decoder") as bar:
        for cell in every:
            bar.set_postfix_str(cell.entry.name)
            found = launches(
                cell.entry.spec,
                cell.sampling,
                settings.preset,
                compiled=settings.compiled,
                batch=settings.batch,
                attention=settings.attention,
            )
            rows += [
                {"decoder": cell.entry.name, "piece": one.phase, "layer": one.layer,
                 "rest": one.rest, "total": one.total}
                for one in found
            ]  # fmt: skip
            bar.update()
    say(terminal(filled(COLUMNS, rows)))
    say(f"{settings.preset}, batch {settings.batch}: {COMPILED if settings.compiled else EAGER}")
    return 0
