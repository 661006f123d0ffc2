"""What a drafter learns from: the target's states along given codes, computed by teacher forcing;
and what the trainer asks of a drafter.

Two layouts of rows. *Paired*: every image once with its caption and once without, rows ordered
[conditional; unconditional], so that distributions can be compared after guidance, where drafts are
accepted. *Single*: one row an image, a share of the captions dropped, as in the released training
(METHODS 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, TextFeatures
from decoders.cache import Growing, Reads
from decoders.models.transformer import Transformer


@dataclass(frozen=True)
class Images:
    """Captions and codes of B images, before the target has seen them."""

    text: TextFeatures
    codes: Tensor  # [B, L] int64

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, index: Tensor) -> Images:
        """The images at `index` [n] int64."""
        return Images(self.text.rows(index), self.codes[index])


@dataclass(frozen=True)
class States:
    """Teacher-forced states of B images in R rows, R = B (single) or 2 B (paired).

    ``hidden[:, P - 1 + j]`` is the state that predicts code j.
    """

    images: Images
    hidden: Tensor  # [R, P + L - 1, D] float
    drop: Tensor  # [R] bool, rows without their caption
    keys_values: Tensor | None = None  # [R, P + L - 1, n, C], see `Learner.reads`

    @property
    def copies(self) -> int:
        """Rows an image: 2 where guidance can be applied, else 1."""
        return len(self.hidden) // len(self.images)

    @property
    def text(self) -> TextFeatures:
        """Captions of all R rows."""
        return self.images.text.paired(self.copies)[0]

    @property
    def codes(self) -> Tensor:
        """[R, L]."""
        return self.images.codes.repeat(self.copies, 1)

    def rows(self, index: Tensor) -> States:
        """The states of the images at `index` [n] int64."""
        index = index.to(self.hidden.device)
        every = torch.cat([copy * len(self.images) + index for copy in range(self.copies)])
        entries = None if self.keys_values is None else self.keys_values[every]
        return States(self.images.rows(index), self.hidden[every], self.drop[every], entries)


def transformer_of(model: ImageModel) -> Transformer:
    """The target as the class whose states can be computed along given codes. Raises
    DecoderError."""
    if not isinstance(model.target, Transformer):
        raise DecoderError(
            "drafters are trained on the states of a Transformer target, found "
            f"{type(model.target).__name__}"
        )
    return model.target


def join(parts: Sequence[States]) -> States:
    """States of several groups of images as one, in order."""

    def rows(name: str) -> Any:
        """[R, ...], all conditional rows first."""
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        by_copy = zip(*(rows.chunk(parts[0].copies) for rows in values), strict=True)
        return torch.cat([rows for copy in by_copy for rows in copy])

    codes = torch.cat([part.images.codes for part in parts])
    images = Images(TextFeatures.joined([part.images.text for part in parts]), codes)
    return States(images, rows("hidden"), rows("drop"), rows("keys_values"))


@torch.no_grad()
def target_states(
    target: Transformer, images: Images, drop: Tensor | None = None, reads: Reads = ()
) -> States:
    """The target's states along the codes. Without `drop` rows are paired; with `drop` [B] bool
    they are single, and the marked ones lose their caption. reads: see `Learner.reads`."""
    if drop is None:
        rows, marked = images.text.paired(2)
        codes = images.codes.repeat(2, 1)  # [2 B, L]
    else:
        rows, marked, codes = images.text, drop, images.codes
    cache = Growing()
    hidden = target.hidden_states(rows, codes, marked, cache if reads else None)
    parts = [cache.parts[layer][0][which].transpose(1, 2).flatten(2) for layer, which in reads]
    return States(images, hidden, marked, torch.stack(parts, 2) if reads else None)


def true_states(target: Transformer, states: States, places: Tensor) -> Tensor:
    """The target's states that predict the codes at `places` [m] -> [R, m, D]."""
    return states.hidden[:, target.prefix - 1 + places]


# ---- what the trainer asks of a drafter ----------------------------------------------------------
# A drafter class ``package.module.Name`` is trained through ``package.module.NameLearner`` (or the
# dotted path given as ``learner=``), built as ``NameLearner(model, **options)``.


@dataclass(frozen=True)
class Drafted:
    """What was drafted at one depth for all R rows.

    Logits are ``head.logits(hidden)``; ``head.barred``: where codes may not stand, as of a target.
    """

    places: Tensor  # [m] int64, the places of the codes that are predicted
    hidden: Tensor  # [R, m, D]
    head: Any
    states: Tensor | None = None  # [R, m, D], what predicts the target's states, if anything does


class Learner(Protocol):
    """A drafter in training. ``net`` is in float32; the trainer moves it and sets autocast."""

    net: nn.Module

    @property
    def reads(self) -> Reads:
        """The target's keys and values that it reads (`States.keys_values`); those of a place are
        of the state there."""
        return ()

    def draft(
        self, states: States, roots: Tensor, depth: int, noise: Tensor | None = None
    ) -> list[Drafted]:
        """Drafts for depths 1..depth along the true codes, as decoding would: a draft at depth d
        from root r (the place of the last committed code) sees true states up to r only.

        roots [m] int64, below L - depth; they hold for depth 2 and deeper. Depth 1, which costs
        little to have everywhere, predicts the places 1..L-1. noise: added to the states that the
        drafter reads, their shape.
        """
        ...

    def save(self, folder: Path) -> str:
        """Writes what ``drafter.checkpoint=folder`` loads; returns the SHA-256 of the weights."""
        ...
