"""The kernel's layers and matrices as torch operators, so that a piece around them is one graph.

An operator takes tensors and numbers: a number stands for the packed weights of a net, which are
found under it for as long as somebody holds them. The cache is changed in place.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor

_HELD: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
OPERATORS = torch.library.Library("lantern_cpu", "DEF")
OPERATORS.define(
    "layers(int net, Tensor x, Tensor places, Tensor slots, Tensor mask, Tensor(a!) cache) -> "
    "Tensor"
)
OPERATORS.define("linear(int net, Tensor x) -> Tensor")
OPERATORS.define("guided(int net, Tensor hidden, float cfg) -> Tensor")


def numbered(net: Any) -> int:
    """The number under which the operators find `net`."""
    number = next(_NUMBERS)
    _HELD[number] = net
    return number


OPERATORS.impl("layers", lambda net, *given: _HELD[net].run(*given), "CPU")
OPERATORS.impl("linear", lambda net, x: _HELD[net].product(x), "CPU")
OPERATORS.impl("guided", lambda net, hidden, cfg: _HELD[net].guidance(hidden, cfg), "CPU")


@torch.library.register_fake("lantern_cpu::layers", lib=OPERATORS)
def _layers_fake(
    net: int, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: Tensor
) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("lantern_cpu::linear", lib=OPERATORS)
def _linear_fake(net: int, x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], _HELD[net].outputs)


@torch.library.register_fake("lantern_cpu::guided", lib=OPERATORS)
def _guided_fake(net: int, hidden: Tensor, cfg: float) -> Tensor:
    rows, queries, _ = hidden.shape
    copies = 1 if cfg == 1 else 2
    return hidden.new_empty(rows // copies, queries, _HELD[net].outputs, dtype=torch.float32)
