"""Checks of what parts return: shapes and dtypes, no values, so that nothing waits for the device
and a step that is compiled or recorded pays nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decoders.errors import DecoderError


class AnswerError(DecoderError):
    """A part returned a wrong shape or dtype."""


def require_floats(part: object, method: str, words: str, value: Any, shape: Any) -> None:
    """Raises AnswerError where what a method of `part` returned is no floating tensor of `shape`;
    words: what it is."""
    if isinstance(value, Tensor) and value.shape == shape and value.is_floating_point():
        return
    raise AnswerError(
        f"{class_path(part)}.{method} must return {words} = {[*shape]} of a floating dtype, found "
        f"{describe(value)}"
    )


def class_path(part: object) -> str:
    """An object's class by its dotted path."""
    return f"{type(part).__module__}.{type(part).__qualname__}"


def describe(value: Any) -> str:
    """Shape and dtype of a tensor, the class of anything else."""
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else class_path(value)
