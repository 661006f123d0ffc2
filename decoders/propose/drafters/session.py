"""What a tree may ask of a drafter, and what a loop gives it.

A session drafts for one batch of images. Its nodes are numbered by the tree that grows; 0 is the
root. What a session or a tree returns lasts until its next call: memory may be used again.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Sampling, TextFeatures
from decoders.noise import Noise


class DraftSession(Protocol):
    """Optional: ``restart(text, prefix_hidden)``, arguments as in `Drafter.begin`, from a class
    that says `decoders.capability.RESTART`: after it the session is as a new one for
    other images, as many, in the same tensors. A recorded step goes on in the session of its first
    image. Without `restart` a new one is copied there, which takes the memory of two meanwhile."""

    root_code: Tensor  # [B] int64, the last committed code
    calls: int  # forwards of the drafter so far

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """Gives the drafter the committed codes; returns guided logits after the new root, [B, V]
        float32.

        hidden [R, T, D]: target states; hidden[:, i] is the state that predicted codes[:, i].
        codes [B, T]; count [B]: how many of the T are real; start [B]: grid place of codes[:, 0].
        """
        ...

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        """Drafts on from w nodes of one level.

        codes [B, w]; nodes [w] int64, their session indices (below `nodes` of `Drafter.begin` +
        1); parents [B, w] session indices; depth of the nodes (root 0) -> guided logits [B, w, V]
        float32.
        """
        ...


class DraftError(DecoderError):
    """The drafter returned a wrong shape or dtype."""


def require_logits(session: DraftSession, logits: Tensor, *shape: int) -> Tensor:
    """The logits of `advance`, shape [B, V], or of `expand`, [B, w, V]; DraftError where they are
    something else. Reads no values, so that nothing waits for the device."""
    if isinstance(logits, Tensor) and logits.shape == shape and logits.is_floating_point():
        if logits.device == session.root_code.device:
            return logits
        raise DraftError(
            f"{named(session)} must return logits on {session.root_code.device}, found "
            f"{logits.device}"
        )
    method, words = ("advance", "[B, V]") if len(shape) == 2 else ("expand", "[B, w, V]")
    raise DraftError(
        f"{named(session)}.{method} must return logits {words} = {list(shape)} of a floating "
        f"dtype, found {_kind(logits)}"
    )


def require_root(session: DraftSession, length: Tensor) -> None:
    """Raises DraftError where the last committed codes are not [B] int64, on the device of
    `length` [B]."""
    root, batch = session.root_code, len(length)
    if not isinstance(root, Tensor) or root.shape != (batch,) or root.dtype != torch.int64:
        raise DraftError(
            f"{named(session)}.root_code must be the last committed codes, [B] = [{batch}] int64, "
            f"found {_kind(root)}"
        )
    if root.device != length.device:
        raise DraftError(
            f"{named(session)}.root_code must be on {length.device}, found {root.device}"
        )


def named(part: object) -> str:
    """An object's class by its dotted path."""
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _kind(value: Any) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else named(value)


class Drafter(Protocol):
    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> DraftSession:
        """prefix_hidden [R, P, D], at padded places anything finite (`Target.prefill`); at most
        `max_new` codes are committed a step, and session indices stay within 0..nodes."""
        ...


class Tree(Protocol):
    nodes: int  # N of the draft
    depth: int  # D
    branching: int  # K
    session_nodes: int  # session indices used while growing, root not counted

    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Noise,
        position: Tensor,
    ) -> Draft:
        """root_logits [B, V]; position [B], the place in the image of the root's child."""
        ...
