"""ImageNet class numbers as prompts, for class-conditional models (LlamaGen 2406.06525)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.data.errors import ConfigError
from bench.prompts import Prompt
from decoders.kinds import Amount, Count


def load(
    count: int | None, classes: Count = 1000, only: Sequence[Amount] | None = None
) -> list[Prompt]:
    """The classes 0, 1, ..., or the chosen ones (`only`, in its order); the prompt is the number.
    Raises ConfigError."""
    chosen = range(classes) if only is None else only
    if beyond := [number for number in chosen if number >= classes]:
        raise ConfigError(
            f"prompts.only must list class numbers from 0 to {classes - 1}, found {beyond[0]}"
        )
    return [Prompt(f"class-{number:04d}", str(number)) for number in chosen]
