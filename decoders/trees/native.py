"""Whether a tree can grow whole, in one call of the CPU kernel, and the draft that this gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from decoders.api import Sampling
from decoders.distribution import filtered
from decoders.drafters.session import DraftSession
from decoders.kernels.cpu.drafting import NativeDrafter


def drafter_of(
    session: DraftSession, sampling: Sampling, root_logits: Tensor
) -> NativeDrafter | None:
    """The session's drafter in the CPU kernel; None, where the tree grows level by level: for any
    other session, and where a filter changes the distribution."""
    own = getattr(session, "native", None)
    if not isinstance(own, NativeDrafter) or filtered(sampling, root_logits.shape[-1]):
        return None
    return own


def grower(own: NativeDrafter, tree: Any, sampling: Sampling, make: Callable[[], Any]) -> Any:
    """What `make` makes, once for a session, its tree and sampling."""
    if own.grower is None or own.grower[0] is not tree or own.grower[1] != sampling:
        own.grower = (tree, sampling, make())
    return own.grower[2]
