"""What a drafter learns from: the target's states along given codes, computed by teacher forcing.

Two layouts of rows. *Paired*: every image once with its caption and once without, rows ordered
[conditional; unconditional], so that distributions can be compared after guidance, where drafts are
accepted. *Single*: one row an image, a share of the captions dropped, as in the released training
(METHODS 6).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, TextFeatures
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
        return Images(text_rows(self.text, index), self.codes[index])


@dataclass(frozen=True)
class States:
    """Teacher-forced states of B images in R rows, R = B (single) or 2 B (paired).

    ``hidden[:, P - 1 + j]`` is the state that predicts code j.
    """

    images: Images
    hidden: Tensor  # [R, P + L - 1, D] float
    drop: Tensor  # [R] bool, rows without their caption

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


def text_rows(text: TextFeatures, index: Tensor) -> TextFeatures:
    """The captions at `index` [n] int64."""
    kept = {f.name: getattr(text, f.name) for f in fields(text)}
    return replace(text, **{k: v[index] for k, v in kept.items() if v is not None})


def text_to(text: TextFeatures, device: torch.device) -> TextFeatures:
    """The same captions on another device."""
    kept = {f.name: getattr(text, f.name) for f in fields(text)}
    return replace(text, **{k: v.to(device) for k, v in kept.items() if v is not None})


def transformer_of(model: ImageModel) -> Transformer:
    """The target as the class whose states can be computed along given codes. Raises
    DecoderError."""
    if not isinstance(model.target, Transformer):
        raise DecoderError(
            "drafters are trained on the states of a Transformer target, found "
            f"{type(model.target).__name__}"
        )
    return model.target


@torch.no_grad()
def target_states(target: Transformer, images: Images, drop: Tensor | None = None) -> States:
    """The target's states along the codes. Without `drop` rows are paired; with `drop` [B] bool
    they are single, and the marked ones lose their caption."""
    if drop is None:
        rows, marked = images.text.paired(2)
        codes = images.codes.repeat(2, 1)  # [2 B, L]
    else:
        rows, marked, codes = images.text, drop, images.codes
    return States(images, target.hidden_states(rows, codes, marked), marked)


def true_states(target: Transformer, states: States, places: Tensor) -> Tensor:
    """The target's states that predict the codes at `places` [m] -> [R, m, D]."""
    return states.hidden[:, target.prefix - 1 + places]
