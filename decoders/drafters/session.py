"""What a tree may ask of a drafter, and what a loop tells it.

A session drafts for one batch of images. Its nodes are numbered by the tree that grows; 0 is the
root. What a session or a tree returns lasts until its next call: memory may be used again.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from decoders.api import Draft, Sampling, TextFeatures
from decoders.noise import Noise


class DraftSession(Protocol):
    root_code: Tensor  # [B] int64, the last committed code
    calls: int  # forwards of the drafter so far

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        """Tells the drafter what was committed; returns guided logits after the new root, [B, V]
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


class Drafter(Protocol):
    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> DraftSession:
        """prefix_hidden [R, P, D]; at most `max_new` codes are committed a step, and session
        indices stay within 0..nodes."""
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
