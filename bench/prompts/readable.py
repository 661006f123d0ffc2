"""Whether a model can read its prompts, asked before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.prompts import Prompt
from decoders.api import DecoderError, ImageModel

ENCODE = 64  # prompts read at once when they are checked


def check_prompts(model: ImageModel, prompts: Sequence[Prompt]) -> None:
    """Reads every prompt once, so that one the model cannot read stops the run before it starts.
    The DecoderError names the prompt."""
    for start in range(0, len(prompts), ENCODE):
        part = prompts[start : start + ENCODE]
        try:
            _reader(model)([p.text for p in part])
        except DecoderError as error:
            bad = next((p for p in part if _unreadable(model, p)), part[0])
            raise DecoderError(f"the model cannot read prompt {bad.id}: {error}") from error


def _reader(model: ImageModel) -> Callable[[list[str]], object]:
    """What raises on prompts that cannot be read: the encoder's own check, where encoding is dear
    enough for it to have one."""
    return getattr(model.text, "check", model.text.encode)


def _unreadable(model: ImageModel, prompt: Prompt) -> bool:
    try:
        _reader(model)([prompt.text])
    except DecoderError:
        return True
    return False
