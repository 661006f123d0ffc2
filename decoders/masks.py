"""Attention masks [R, T, S] of two kinds: bool, True where a query may look; or float32, added to
scores: 0 there, -inf elsewhere. What a step computes is of the second kind: on a CPU compiled code
combines floats thirty times faster than bools."""

from __future__ import annotations

import torch
from torch import Tensor

CLOSED = float("-inf")


def visible(mask: Tensor) -> Tensor:
    """The bool mask of one of either kind."""
    return mask if mask.dtype == torch.bool else mask == 0


def added(visible: Tensor) -> Tensor:
    """The float32 mask of a bool one."""
    return torch.where(visible, 0.0, CLOSED)


def cache_mask(open_: Tensor, own: Tensor, first: Tensor | int) -> Tensor:
    """The float32 mask [R, T, S] of T queries over a cache. All queries see the slots of `open_`
    [R, S]. Of the n slots from `first` ([R, 1] or one number) on, each query sees those of its row
    in `own` [R, T, n]."""
    rows, queries, size = own.shape
    slots = (first + torch.arange(size, device=own.device)).expand(rows, -1)  # [R, n]
    mask = open_[:, None].repeat(1, queries, 1)  # [R, T, S]
    return mask.scatter_(2, slots[:, None].expand(-1, queries, -1), own)
