"""Left padding: the last valid feature of a caption stands right before the first code.

LlamaGen's tokenizer pads on the right; the rows are rolled afterwards (METHODS 6).
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import DecoderError, TextFeatures


def left_padded(features: Tensor, mask: Tensor) -> TextFeatures:
    """Right-padded features [B, P, F], mask [B, P] bool -> the same with the valid ones at the
    right end in their order, zero elsewhere. A row without padding stays as it is."""
    length = mask.shape[1]
    place = torch.arange(length, device=mask.device) + mask.sum(1, keepdim=True)
    place = place % length  # [B, P], where each position's feature comes from
    rolled = features.gather(1, place[..., None].expand_as(features))  # [B, P, F]
    valid = mask.gather(1, place)  # [B, P]
    return TextFeatures(rolled.masked_fill(~valid[..., None], 0), valid)


def right_padded_rows(mask: Tensor, source: str) -> Tensor:
    """Which rows of a mask [n, P] bool are padded on the right, [n] bool.

    Raises DecoderError for a row without valid positions or with padding in its middle or on both
    sides; `source` names the mask.
    """
    count = mask.sum(1)  # [n]
    place = torch.arange(mask.shape[1], device=mask.device)
    left = (mask == (place >= mask.shape[1] - count[:, None])).all(1)
    right = (mask == (place < count[:, None])).all(1)
    wrong = (count == 0) | ~(left | right)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise DecoderError(
            f"{source}: row {row} of the mask must be one run of valid positions at its right or "
            f"left end, found {int(count[row])} valid of {mask.shape[1]} in another order"
        )
    return right & ~left
