"""A drafter's net that runs a target of its own."""

from __future__ import annotations

from typing import Any

from torch import nn


class BodyNet(nn.Module):
    """What the net makes of the states of a target, ``body``, whose layers an execution may
    replace."""

    body: Any
