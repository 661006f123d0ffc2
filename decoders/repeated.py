"""What a step calls many times with tensors of equal shapes, compiled once: layers of a net, tests
of a node's children. On a GPU only, where nine tenths of compiling a net of 36 layers were copies
of one layer. On a CPU layers are operators of the kernel, whose weights a region cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import nested_compile_region

MOST_SHAPES = 64  # shapes that a function is compiled for in one piece; PyTorch allows 8 by itself
T = TypeVar("T")


def compiled_once(function: Callable[..., T]) -> Callable[..., T]:
    """A function whose first tensor says on which device it runs. It may not write into its
    tensors: the compiler would copy them before and after."""
    parameters = inspect.signature(nested_compile_region).parameters
    options: dict[str, Any] = (
        {"max_reuse_entries": MOST_SHAPES} if "max_reuse_entries" in parameters else {}
    )
    region: Callable[..., T] = nested_compile_region(function, **options)

    @wraps(function)
    def call(*arguments: Any) -> T:
        if torch.compiler.is_compiling():
            first = next(x for x in arguments if isinstance(x, Tensor))
            if first.device.type == "cuda":
                return region(*arguments)
        return function(*arguments)

    return call
