"""Whether a tree can grow whole, in one call of the CPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoders.api import Draft, Sampling
from decoders.distribution import filtered
from decoders.drafters.session import DraftSession
from decoders.kernels.cpu.drafting import NativeDrafter

Grower = Callable[..., Draft]  # (root_logits, noise, position) -> what `Tree.grow` gives


def grower(
    session: DraftSession, tree: Any, sampling: Sampling, make: Callable[..., Grower]
) -> Grower | None:
    """What `make(drafter, sampling)` gives, made once for a session, its tree and its sampling;
    None, where the tree grows level by level: in any session that is not in the kernel, and where a
    filter changes the distribution."""
    own = getattr(session, "native", None)
    if not isinstance(own, NativeDrafter) or filtered(sampling, own.vocab):
        return None
    if own.grower is None or own.grower[0] is not tree or own.grower[1] is not sampling:
        own.grower = (tree, sampling, make(own, sampling))
    found: Grower = own.grower[2]
    return found
