"""Drafts at places of which the target has said nothing yet (METHODS2 (a)).

* uniform: drawn from 1 / V, and 1 / V is declared. Accepted with min(1, V p(x)).
* random: drawn from 1 / V, but a certain code is declared (q = 1 at x), as the released code does.
  Exact too, but accepted with p(x) only.
* horizontal, vertical: the code to the left, or one row up; a certain code is declared.
* sample: drawn from the target's furthest law, which is declared.

A structural code (Lumina's row ends) is certain at its place, whatever the init.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError

INITS = ("uniform", "random", "horizontal", "vertical", "sample")
POINTS = ("random", "horizontal", "vertical")  # inits that declare a certain code


def known_init(init: str) -> str:
    if init not in INITS:
        raise DecoderError(f"proposer.init is one of {', '.join(INITS)}, found {init!r}")
    return init


@dataclass(frozen=True)
class Places:
    """What is known of an image's places: codes of a row, and the codes that are forced."""

    row: int
    forced: Tensor | None  # [W] int64, of a place n at n % W; -1 where the model chooses

    @staticmethod
    def of(target: Any) -> Places:
        """A grid is square; with structural codes a row has one more place."""
        side = math.isqrt(target.length)
        if target.barred is None:
            return Places(side, None)
        open_ = ~target.barred  # [W, V]
        alone = open_.sum(-1) == 1
        return Places(side + 1, torch.where(alone, open_.int().argmax(-1), -1))


def blank(init: str, last: Tensor, first: Tensor) -> Tensor:
    """The law to draw a fresh draft from, [B, 1, V]. last [B, V]: the target's furthest law, zeros
    if it said nothing; first [B, V]: that of the image's first code."""
    if init == "sample":
        return torch.where(last.sum(-1, keepdim=True) > 0, last, first.to(last))[:, None]
    return torch.full_like(last, 1 / last.shape[-1])[:, None]


def copied(
    init: str,
    kind: Places,
    codes: Tensor,
    fresh: Tensor,
    root: Tensor,
    image: Tensor,
    places: Tensor,
) -> tuple[Tensor, Tensor]:
    """Fresh drafts [B, W] that are copied from a neighbour, or forced -> (codes, forced ones
    [B, W] bool). codes: what was drawn; fresh bool; root [B, 1]; image [B, > L]: all codes so far;
    places [B, W]."""
    if init in ("horizontal", "vertical"):
        left = torch.cat([root, codes], 1).gather(1, (~fresh).sum(1, keepdim=True))  # [B, 1]
        codes = torch.where(fresh, left, codes)
    if init == "vertical":
        codes = _from_above(kind.row, codes, fresh, image, places)
    if kind.forced is None:
        return codes, torch.zeros_like(fresh)
    must = kind.forced[places % len(kind.forced)]  # [B, W]
    known = fresh & (must >= 0)
    return torch.where(known, must, codes), known


def _from_above(row: int, codes: Tensor, fresh: Tensor, image: Tensor, places: Tensor) -> Tensor:
    """Fresh drafts below the first row: the code one row up, which may be a draft of the window."""
    width = codes.shape[1]
    whole = F.pad(image, (0, width))  # [B, > L + W]
    fresh = fresh & (places >= row)
    end = whole.shape[1] - 1
    for _ in range(-(-width // row)):
        whole = whole.scatter(1, places.clamp_max(end), codes)
        above = whole.gather(1, (places - row).clamp(0, end))
        codes = torch.where(fresh, above, codes)
    return codes
