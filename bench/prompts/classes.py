"""ImageNet class numbers as prompts, for class-conditional models (LlamaGen 2406.06525)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.data.errors import ConfigError
from bench.prompts import Prompt, check, prompt_set


@prompt_set
def load(count: int | None, classes: int = 1000, only: Sequence[int] | None = None) -> list[Prompt]:
    """The first `count` of the classes 0, 1, ..., or of the chosen ones (`only`, in its order); the
    prompt is the number. Raises ConfigError, PromptError."""
    if type(classes) is not int or classes < 1:
        raise ConfigError(f"prompts.classes must be a whole number from 1 on, found {classes!r}")
    chosen = range(classes) if only is None else only
    for number in chosen:
        if type(number) is not int or not 0 <= number < classes:
            raise ConfigError(
                f"prompts.only must list class numbers from 0 to {classes - 1}, found {number!r}"
            )
    prompts = [Prompt(f"class-{number:04d}", str(number)) for number in chosen]
    return check(prompts, "prompts=classes", count)
